// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The collectives that move data and do not change it: the gradient of each is another one of them, or a sum.
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <numeric>

#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "gradwire/functional/rule_internal.h"

namespace gradwire::functional {
namespace {

using Sizes = std::vector<std::vector<std::int64_t>>;

at::Tensor contiguous_copy(const at::Tensor& tensor) { return tensor.clone(at::MemoryFormat::Contiguous); }

at::Tensor empty_as(const at::Tensor& tensor) { return at::empty_like(tensor, {}, at::MemoryFormat::Contiguous); }

Sizes sizes_of(const Tensors& tensors) {
  Sizes sizes;
  for (const at::Tensor& tensor : tensors) sizes.push_back(tensor.sizes().vec());
  return sizes;
}

class Broadcast : public Rule {
 public:
  Broadcast(int root, Group group) : Rule("broadcast", std::move(group)), root_(root) {}
  Tensors forward(const Tensors& inputs) const override {
    at::Tensor tensor = contiguous_copy(inputs[0]);
    auto options = synchronous<BroadcastOptions>();
    options.root = root_;
    group().broadcast({tensor}, options)->wait();
    return {tensor};
  }
  Tensors backward(const Tensors& /*saved*/, const Tensors& gradients) const override {
    return {functional::reduce(gradients[0], root_, shared_group())};
  }

 private:
  int root_;
};

class AllGather : public Rule {
 public:
  explicit AllGather(Group group) : Rule("all_gather", std::move(group)) {}
  Tensors forward(const Tensors& inputs) const override {
    Tensors outputs;
    for (int rank = 0; rank < group().size(); ++rank) outputs.push_back(empty_as(inputs[0]));
    group().all_gather({outputs}, {inputs[0]}, synchronous<AllGatherOptions>())->wait();
    return outputs;
  }
  Tensors backward(const Tensors& /*saved*/, const Tensors& gradients) const override {
    return {functional::reduce_scatter(gradients, shared_group())};
  }
};

class Gather : public Rule {
 public:
  Gather(int root, Group group) : Rule("gather", std::move(group)), root_(root) {}
  Tensors forward(const Tensors& inputs) const override {
    const bool is_root = group().rank() == root_;
    Tensors outputs;
    for (int rank = 0; rank < group().size(); ++rank) {
      outputs.push_back(is_root ? empty_as(inputs[0]) : at::zeros_like(inputs[0], {}, at::MemoryFormat::Contiguous));
    }
    auto options = synchronous<GatherOptions>();
    options.root = root_;
    group().gather(is_root ? std::vector<Tensors>{outputs} : std::vector<Tensors>{}, {inputs[0]}, options)->wait();
    return outputs;
  }
  Tensors backward(const Tensors& /*saved*/, const Tensors& gradients) const override {
    return {functional::scatter(gradients, root_, shared_group())};
  }

 private:
  int root_;
};

class Scatter : public Rule {
 public:
  Scatter(int root, Group group) : Rule("scatter", std::move(group)), root_(root) {}
  Tensors forward(const Tensors& inputs) const override {
    at::Tensor output = empty_as(inputs[0]);
    auto options = synchronous<ScatterOptions>();
    options.root = root_;
    const bool is_root = group().rank() == root_;
    group().scatter({output}, is_root ? std::vector<Tensors>{inputs} : std::vector<Tensors>{}, options)->wait();
    return {output};
  }
  Tensors backward(const Tensors& /*saved*/, const Tensors& gradients) const override {
    return functional::gather(gradients[0], root_, shared_group());
  }

 private:
  int root_;
};

class AllToAll : public Rule {
 public:
  AllToAll(Sizes input_sizes, Sizes output_sizes, Group group)
      : Rule("all_to_all", std::move(group)),
        input_sizes_(std::move(input_sizes)),
        output_sizes_(std::move(output_sizes)) {}
  Tensors forward(const Tensors& inputs) const override {
    Tensors outputs;
    for (const auto& sizes : output_sizes_) outputs.push_back(at::empty(sizes, inputs[0].options()));
    Tensors sent;
    for (const at::Tensor& input : inputs) sent.push_back(input.contiguous());
    group().all_to_all(outputs, sent, synchronous<AllToAllOptions>())->wait();
    return outputs;
  }
  Tensors backward(const Tensors& /*saved*/, const Tensors& gradients) const override {
    return functional::all_to_all(gradients, shared_group(), input_sizes_);
  }

 private:
  Sizes input_sizes_, output_sizes_;
};

class AllToAllSingle : public Rule {
 public:
  AllToAllSingle(std::vector<std::int64_t> output_splits, std::vector<std::int64_t> input_splits, Group group)
      : Rule("all_to_all_single", std::move(group)),
        output_splits_(std::move(output_splits)),
        input_splits_(std::move(input_splits)) {}
  Tensors forward(const Tensors& inputs) const override {
    std::vector<std::int64_t> sizes = inputs[0].sizes().vec();
    sizes[0] = std::accumulate(output_splits_.begin(), output_splits_.end(), std::int64_t{0});
    at::Tensor output = at::empty(sizes, inputs[0].options());
    group()
        .all_to_all_single(output, inputs[0].contiguous(), output_splits_, input_splits_,
                           synchronous<AllToAllOptions>())
        ->wait();
    return {output};
  }
  Tensors backward(const Tensors& /*saved*/, const Tensors& gradients) const override {
    return {functional::all_to_all_single(gradients[0], shared_group(), input_splits_, output_splits_)};
  }

 private:
  std::vector<std::int64_t> output_splits_, input_splits_;
};

// Checks `splits` of `rows`, or makes even ones.
std::vector<std::int64_t> splits_of(const ProcessGroup& group, const char* what, std::vector<std::int64_t> splits,
                                    std::int64_t rows) {
  constexpr const char* kWhere = "all_to_all_single on rank ";
  if (splits.empty()) {
    if (rows % group.size() != 0) {
      throw InvalidArgument(
          concat(kWhere, group.rank(), ": ", rows, " rows are no multiple of ", group.size(), " ranks; pass ", what));
    }
    return std::vector<std::int64_t>(static_cast<std::size_t>(group.size()), rows / group.size());
  }
  if (splits.size() != static_cast<std::size_t>(group.size()) ||
      std::any_of(splits.begin(), splits.end(), [](std::int64_t rows) { return rows < 0; })) {
    throw InvalidArgument(
        concat(kWhere, group.rank(), ": ", what, " must be ", group.size(), " numbers of rows, none negative"));
  }
  return splits;
}

// The part of all_to_all that a rank sends itself shows before any communication whether the sizes fit.
void require_own_part(const ProcessGroup& group, const Tensors& inputs,
                      const std::vector<std::vector<std::int64_t>>& output_sizes) {
  for (const std::vector<std::int64_t>& sizes : output_sizes) {
    if (std::any_of(sizes.begin(), sizes.end(), [](std::int64_t size) { return size < 0; })) {
      throw InvalidArgument(concat("all_to_all on rank ", group.rank(), ": an output of the sizes ",
                                   c10::IntArrayRef(sizes), "; no size may be negative"));
    }
  }
  const auto own = static_cast<std::size_t>(group.rank());
  const std::int64_t sent = inputs[own].numel();
  const std::int64_t received = c10::multiply_integers(output_sizes[own]);
  if (sent != received) {
    throw InvalidArgument(concat("all_to_all on rank ", group.rank(), ": the rank sends itself ", sent,
                                 " elements, and receives ", received, " from itself by output_sizes"));
  }
}

}  // namespace

at::Tensor broadcast(const at::Tensor& tensor, int root, const Group& group) {
  require_arguments("broadcast", group, {tensor});
  require_rank("broadcast", *group, "root", root);
  return run_rule(c10::make_intrusive<Broadcast>(root, group), {tensor}).front();
}

Tensors all_gather(const at::Tensor& tensor, const Group& group) {
  require_arguments("all_gather", group, {tensor});
  return run_rule(c10::make_intrusive<AllGather>(group), {tensor});
}

Tensors gather(const at::Tensor& tensor, int root, const Group& group) {
  require_arguments("gather", group, {tensor});
  require_rank("gather", *group, "root", root);
  return run_rule(c10::make_intrusive<Gather>(root, group), {tensor});
}

at::Tensor scatter(const Tensors& inputs, int root, const Group& group) {
  require_arguments("scatter", group, inputs);
  require_rank("scatter", *group, "root", root);
  require_one_a_rank("scatter", *group, inputs, true);
  return run_rule(c10::make_intrusive<Scatter>(root, group), inputs).front();
}

Tensors all_to_all(const Tensors& inputs, const Group& group, std::vector<std::vector<std::int64_t>> output_sizes) {
  require_arguments("all_to_all", group, inputs);
  require_one_a_rank("all_to_all", *group, inputs, false);
  if (output_sizes.empty()) output_sizes = sizes_of(inputs);
  if (output_sizes.size() != inputs.size()) {
    throw InvalidArgument(concat("all_to_all on rank ", group->rank(), ": ", output_sizes.size(), " output sizes for ",
                                 group->size(), " ranks; pass one a rank, or none"));
  }
  require_own_part(*group, inputs, output_sizes);
  return run_rule(c10::make_intrusive<AllToAll>(sizes_of(inputs), std::move(output_sizes), group), inputs);
}

at::Tensor all_to_all_single(const at::Tensor& input, const Group& group, std::vector<std::int64_t> output_splits,
                             std::vector<std::int64_t> input_splits) {
  require_arguments("all_to_all_single", group, {input});
  if (input.dim() == 0) {
    throw InvalidArgument(
        concat("all_to_all_single on rank ", group->rank(), ": a tensor of no dimension has no rows"));
  }
  const std::int64_t rows = input.size(0);
  input_splits = splits_of(*group, "input_splits", std::move(input_splits), rows);
  output_splits = splits_of(*group, "output_splits", std::move(output_splits), rows);
  if (std::accumulate(input_splits.begin(), input_splits.end(), std::int64_t{0}) != rows) {
    throw InvalidArgument(concat("all_to_all_single on rank ", group->rank(), ": input_splits ",
                                 c10::IntArrayRef(input_splits), " do not add up to ", rows, " rows"));
  }
  const auto own = static_cast<std::size_t>(group->rank());
  if (input_splits[own] != output_splits[own]) {
    throw InvalidArgument(concat("all_to_all_single on rank ", group->rank(), ": the rank sends itself ",
                                 input_splits[own], " rows by input_splits, and receives ", output_splits[own],
                                 " from itself by output_splits; both must be equal"));
  }
  return run_rule(c10::make_intrusive<AllToAllSingle>(std::move(output_splits), std::move(input_splits), group),
                  {input})
      .front();
}

}  // namespace gradwire::functional
