// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/process_group/validate_internal.h"

#include <ATen/MemoryOverlap.h>

#include <algorithm>
#include <numeric>

#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "gradwire/process_group/dtype_internal.h"

namespace gradwire::internal {

std::string name_group(const ProcessGroup& group) {
  // Appended, not streamed: every message between ranks has this name.
  std::string name = "rank ";
  name.append(std::to_string(group.rank())).append(" of group '").append(group.group_name());
  return name.append("' (").append(group.name()).append(")");
}

void require_work(const std::shared_ptr<Work>& work, const ProcessGroup& group, const char* operation) {
  if (work != nullptr) return;
  throw InvalidArgument(
      concat(name_group(group), ": ", operation, " returned no Work; the class of the group must return one"));
}

Milliseconds grace_for_report(Milliseconds timeout) {
  return std::min(timeout / 2 + Milliseconds{1}, Milliseconds{1000});
}

void throw_missing(const ProcessGroup& group, const std::vector<int>& late, const std::vector<int>& dead,
                   Milliseconds timeout, bool wait_all) {
  std::vector<std::string> said;
  if (!dead.empty()) said.push_back(concat(name_ranks(dead), " died or left the group"));
  if (!late.empty()) said.push_back(concat(name_ranks(late), " did not come within ", timeout.count(), " ms"));
  const std::string message = concat(name_group(group), ": monitored_barrier: ", gradwire::join(said, "; "),
                                     wait_all ? "" : "; others may be missing too");
  if (dead.empty()) throw TimeoutError(message, late);
  std::vector<int> all = dead;
  all.insert(all.end(), late.begin(), late.end());
  std::sort(all.begin(), all.end());
  throw PeerError(message, all);
}

void throw_no_report(const ProcessGroup& group, Milliseconds timeout) {
  throw TimeoutError(concat(name_group(group), ": monitored_barrier: rank 0 did not report within ", timeout.count(),
                            " ms that all ranks have come"),
                     {0});
}

Validator::Validator(const ProcessGroup& group, std::string_view operation) : group_(group), operation_(operation) {}

void Validator::fail(const std::string& what) const {
  throw InvalidArgument(concat(name_group(group_), ": ", operation_, ": ", what));
}

void Validator::timeout(Milliseconds timeout) const {
  if (timeout.count() < 0) {
    fail(concat("a timeout of ", timeout.count(), " ms; give a positive one, or 0 for the group's"));
  }
}

void Validator::rank(const char* what, int rank) const {
  if (rank < 0 || rank >= group_.size()) {
    fail(concat(what, " is ", rank, ", and the group's ranks are 0 to ", group_.size() - 1));
  }
}

void Validator::root(const BroadcastOptions& options) const {
  rank("the root", options.root);
  if (options.root_tensor != 0) fail(concat("root_tensor is ", options.root_tensor, "; it must be 0"));
}

void Validator::root(const ReduceOptions& options) const {
  rank("the root", options.root);
  if (options.root_tensor != 0) fail(concat("root_tensor is ", options.root_tensor, "; it must be 0"));
}

void Validator::tensors(const char* what, const Tensors& tensors) const {
  if (tensors.empty()) fail(concat("the list of ", what, " is empty; give at least one tensor"));
  for (const at::Tensor& each : tensors) tensor(what, each);
}

void Validator::tensor(const char* what, const at::Tensor& tensor) const {
  if (!tensor.defined()) fail(concat("one of the ", what, " is an undefined tensor"));
  if (tensor.is_nested()) fail(concat("one of the ", what, " is a nested tensor; pass the tensors of its unbind()"));
  if (tensor.layout() != at::kStrided) {
    fail(concat("one of the ", what, " has the layout ", tensor.layout(), "; make it dense first, with to_dense()"));
  }
  if (tensor.is_quantized()) fail(concat("one of the ", what, " is quantized; pass its int_repr()"));
  if (!group_.supports(tensor.device().type())) {
    fail(concat("one of the ", what, " is on ", tensor.device(), ", which this group does not serve"));
  }
}

void Validator::outputs(const char* what, const Tensors& tensors) const {
  this->tensors(what, tensors);
  for (const at::Tensor& each : tensors) output(what, each);
}

void Validator::output(const char* what, const at::Tensor& tensor) const {
  this->tensor(what, tensor);
  if (at::has_internal_overlap(tensor) == at::MemOverlap::Yes) {
    fail(concat("several elements of one of the ", what, " share memory (an expanded tensor); clone() it first"));
  }
}

void Validator::reduction(ReduceOp op, const at::Tensor& tensor) const {
  const auto dtype = to_dtype(tensor.scalar_type());
  if (!dtype || is_defined(op, *dtype)) return;
  try {
    require_defined(op, *dtype);
  } catch (const InvalidArgument& error) {
    fail(error.what());
  }
}

void Validator::reduction(ReduceOp op, const Tensors& tensors) const {
  for (const at::Tensor& tensor : tensors) reduction(op, tensor);
}

void Validator::reducible(const at::Tensor& tensor) const {
  if (!to_dtype(tensor.scalar_type()))
    fail(concat("there is no reduction of ", tensor.scalar_type(), "; convert to a type that has one"));
}

void Validator::reducible(const Tensors& tensors) const {
  for (const at::Tensor& tensor : tensors) reducible(tensor);
}

void Validator::matches(const char* what, const at::Tensor& tensor, const at::Tensor& model,
                        std::int64_t expected) const {
  if (tensor.scalar_type() != model.scalar_type()) {
    fail(concat("one of the ", what, " is of ", tensor.scalar_type(), "; it must be of ", model.scalar_type()));
  }
  if (tensor.numel() != expected) {
    fail(concat("one of the ", what, " has ", tensor.numel(), " elements; it must have ", expected));
  }
}

void Validator::same_length(const char* what, std::size_t length, const char* than, std::size_t expected) const {
  if (length != expected) fail(concat("there are ", length, " ", what, " for ", expected, " ", than));
}

void Validator::lists(const char* what, const std::vector<Tensors>& lists, const char* model_name,
                      const Tensors& models) const {
  if (lists.size() != models.size())
    fail(concat("there are ", lists.size(), " lists of ", what, " for ", models.size(), " ", model_name));
  for (std::size_t i = 0; i < lists.size(); ++i) {
    if (lists[i].size() != static_cast<std::size_t>(group_.size())) {
      fail(concat("one of the lists of ", what, " has ", lists[i].size(), " tensors; it needs one for each of the ",
                  group_.size(), " ranks"));
    }
    tensors(what, lists[i]);
    for (const at::Tensor& each : lists[i]) matches(what, each, models[i], models[i].numel());
  }
}

void Validator::splits(const char* what, std::vector<std::int64_t>& splits, const at::Tensor& tensor) const {
  if (tensor.dim() == 0) fail(concat("the ", what, " is a scalar; it needs a dimension to split"));
  const std::int64_t rows = tensor.size(0);
  const auto size = static_cast<std::size_t>(group_.size());
  if (splits.empty()) {
    if (rows % group_.size() != 0) {
      fail(concat("the ", what, " has ", rows, " rows, which do not divide by ", group_.size(), " ranks; give splits"));
    }
    splits.assign(size, rows / group_.size());
    return;
  }
  if (splits.size() != size)
    fail(concat("there are ", splits.size(), " splits of the ", what, " for ", size, " ranks"));
  for (const std::int64_t split : splits) {
    if (split < 0) fail(concat("a split of the ", what, " is ", split));
  }
  const std::int64_t sum = std::accumulate(splits.begin(), splits.end(), std::int64_t{0});
  if (sum != rows) fail(concat("the splits of the ", what, " add up to ", sum, ", and it has ", rows, " rows"));
}

}  // namespace gradwire::internal
