// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// What a group does that a class derived from ProcessGroup does not override: refuse, or be made of what is overridden.
#include <ATen/Functions.h>
#include <c10/core/GradMode.h>

#include <atomic>
#include <utility>

#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "gradwire/process_group/message_tags_internal.h"
#include "gradwire/process_group/message_timeout_internal.h"
#include "gradwire/process_group/process_group.h"
#include "gradwire/process_group/validate_internal.h"
#include "gradwire/process_group/work_internal.h"

namespace gradwire {
namespace {

using internal::Outputs;

// The parts of `whole` that belong to the ranks, each of the shape `shape`, as views of it.
Tensors parts_of(const at::Tensor& whole, std::int64_t ranks, at::IntArrayRef shape) {
  Tensors parts;
  const at::Tensor rows = whole.view({ranks, whole.numel() / ranks});
  for (std::int64_t rank = 0; rank < ranks; ++rank) parts.push_back(rows[rank].view(shape));
  return parts;
}

// `tensor` itself where its memory is in order, else memory of its shape that is.
at::Tensor in_order(const at::Tensor& tensor) {
  return tensor.is_contiguous() ? tensor : at::empty(tensor.sizes(), tensor.options());
}

}  // namespace

void ProcessGroup::unsupported(const char* operation) const {
  throw UnsupportedError(concat(internal::name_group(*this), " does not support ", operation,
                                "; override it in the class of the group, or use a group that has it"));
}

std::shared_ptr<Work> ProcessGroup::do_broadcast(Tensors&, const BroadcastOptions&) { unsupported("broadcast"); }

std::shared_ptr<Work> ProcessGroup::do_all_reduce(Tensors&, const AllReduceOptions&) { unsupported("all_reduce"); }

std::shared_ptr<Work> ProcessGroup::do_reduce(Tensors&, const ReduceOptions&) { unsupported("reduce"); }

std::shared_ptr<Work> ProcessGroup::do_all_gather(std::vector<Tensors>&, Tensors&, const AllGatherOptions&) {
  unsupported("all_gather");
}

std::shared_ptr<Work> ProcessGroup::do_gather(std::vector<Tensors>&, Tensors&, const GatherOptions&) {
  unsupported("gather");
}

std::shared_ptr<Work> ProcessGroup::do_scatter(Tensors&, std::vector<Tensors>&, const ScatterOptions&) {
  unsupported("scatter");
}

std::shared_ptr<Work> ProcessGroup::do_reduce_scatter(Tensors&, std::vector<Tensors>&, const ReduceScatterOptions&) {
  unsupported("reduce_scatter");
}

std::shared_ptr<Work> ProcessGroup::do_all_to_all(Tensors&, Tensors&, const AllToAllOptions&) {
  unsupported("all_to_all");
}

std::shared_ptr<Work> ProcessGroup::do_send(Tensors&, int, int) { unsupported("send"); }

std::shared_ptr<Work> ProcessGroup::do_recv(Tensors&, int, int) { unsupported("recv"); }

std::shared_ptr<Work> ProcessGroup::do_recv_anysource(Tensors&, int) { unsupported("recv_anysource"); }

std::shared_ptr<ProcessGroup> ProcessGroup::do_dup() { return nullptr; }

std::shared_ptr<ProcessGroup> ProcessGroup::do_split(int, int, const std::optional<std::string>&) {
  unsupported("split");
}

at::Tensor ProcessGroup::do_allocate(std::int64_t numel, at::ScalarType dtype) {
  return at::zeros({numel}, at::TensorOptions(dtype));
}

Tensors ProcessGroup::do_symmetric_memory(const at::Tensor&) { return {}; }

namespace {

// `work`, which a method of the user's class has returned.
std::shared_ptr<Work> required(std::shared_ptr<Work> work, const ProcessGroup& group, const char* operation) {
  internal::require_work(work, group, operation);
  return work;
}

}  // namespace

std::shared_ptr<Work> ProcessGroup::do_all_gather_into_tensor(at::Tensor& output, at::Tensor& input,
                                                              const AllGatherOptions& options) {
  const c10::NoGradGuard no_grad;
  const at::Tensor memory = in_order(output);
  std::vector<Tensors> lists{parts_of(memory, size(), input.sizes())};
  Tensors inputs{input};
  std::shared_ptr<Work> work = required(do_all_gather(lists, inputs, options), *this, "all_gather");
  return internal::work_after(
      std::move(work),
      [output, memory] {
        const c10::NoGradGuard no_grad_here;
        if (!memory.is_same(output)) output.copy_(memory);
      },
      Outputs::one(output));
}

std::shared_ptr<Work> ProcessGroup::do_reduce_scatter_tensor(at::Tensor& output, at::Tensor& input,
                                                             const ReduceScatterOptions& options) {
  const c10::NoGradGuard no_grad;
  Tensors outputs{output};
  std::vector<Tensors> lists{parts_of(input.contiguous(), size(), output.sizes())};
  return do_reduce_scatter(outputs, lists, options);
}

std::shared_ptr<Work> ProcessGroup::do_all_to_all_single(at::Tensor& output, at::Tensor& input,
                                                         std::vector<std::int64_t>& output_splits,
                                                         std::vector<std::int64_t>& input_splits,
                                                         const AllToAllOptions& options) {
  const c10::NoGradGuard no_grad;
  // Rows of a tensor are views whatever its strides, and all_to_all takes any strides.
  Tensors outputs = output.split_with_sizes(output_splits);
  Tensors inputs = input.split_with_sizes(input_splits);
  std::shared_ptr<Work> work = required(do_all_to_all(outputs, inputs, options), *this, "all_to_all");
  return internal::work_after(
      std::move(work), [] {}, Outputs::one(output));
}

std::shared_ptr<Work> ProcessGroup::do_barrier(const BarrierOptions& options) {
  AllReduceOptions reduce;
  static_cast<CollectiveOptions&>(reduce) = options;
  Tensors byte{at::zeros({1}, at::TensorOptions(at::kByte))};
  return do_all_reduce(byte, reduce);
}

namespace {

// Messages of monitored barriers have tags that users cannot name. The number keeps what comes late from being taken
// for the next barrier's.
int barrier_tag(std::uint32_t number) { return internal::kFirstInternalTag + static_cast<int>(number & 0x3fffffffU); }

Tensors bytes_of_zero(int count) { return {at::zeros({count}, at::TensorOptions(at::kByte))}; }

// What rank 0 reports to the others: of each rank, one of these.
enum Arrival : std::uint8_t { kHere = 0, kLate = 1, kDead = 2 };

std::vector<int> ranks_that_are(Arrival arrival, const at::Tensor& report) {
  std::vector<int> ranks;
  const auto* const arrivals = report.const_data_ptr<std::uint8_t>();
  for (int rank = 0; rank < report.numel(); ++rank) {
    if (arrivals[rank] == arrival) ranks.push_back(rank);
  }
  return ranks;
}

// Time left for a Work::wait(), for which zero means something else.
Milliseconds left_of(const Deadline& deadline) { return std::max(deadline.remaining(), Milliseconds{1}); }

}  // namespace

void ProcessGroup::do_monitored_barrier(Milliseconds timeout, bool wait_all) {
  const Milliseconds with_grace = saturated_sum(timeout, internal::grace_for_report(timeout));
  const Deadline deadline = Deadline::after(timeout);
  const Deadline last = Deadline::after(with_grace);
  // What did not come then is waited for no longer, also when the group ends.
  const internal::MessageTimeout limit(with_grace);
  const int tag = barrier_tag(next_barrier());
  Tensors report = bytes_of_zero(size());
  if (rank() != 0) {
    Tensors here = bytes_of_zero(1);
    required(do_send(here, 0, tag), *this, "send")->wait(left_of(deadline));
    try {
      required(do_recv(report, 0, tag), *this, "recv")->wait(left_of(last));
    } catch (const TimeoutError&) {
      internal::throw_no_report(*this, timeout);
    }
  } else {
    std::vector<Tensors> bytes(static_cast<std::size_t>(size()));
    std::vector<std::shared_ptr<Work>> arrivals;
    for (int peer = 1; peer < size(); ++peer) {
      Tensors& byte = bytes[static_cast<std::size_t>(peer)] = bytes_of_zero(1);
      arrivals.push_back(required(do_recv(byte, peer, tag), *this, "recv"));
    }
    auto* const of_all = report.front().mutable_data_ptr<std::uint8_t>();
    bool is_complete = true;
    for (int peer = 1; peer < size() && (is_complete || wait_all); ++peer) {
      try {
        arrivals[static_cast<std::size_t>(peer - 1)]->wait(left_of(deadline));
      } catch (const TimeoutError&) {
        of_all[peer] = kLate;
      } catch (const PeerError&) {
        of_all[peer] = kDead;
      }
      is_complete = is_complete && of_all[peer] == kHere;
    }
    report_arrivals(arrivals, report, tag, is_complete, last);
  }
  const std::vector<int> late = ranks_that_are(kLate, report.front()), dead = ranks_that_are(kDead, report.front());
  if (!late.empty() || !dead.empty()) internal::throw_missing(*this, late, dead, timeout, wait_all);
}

// Where ranks are missing, the report goes to those that are here, and an error on its way is not this rank's.
void ProcessGroup::report_arrivals(const std::vector<std::shared_ptr<Work>>& arrivals, const Tensors& report, int tag,
                                   bool is_complete, Deadline deadline) {
  std::vector<std::shared_ptr<Work>> sent;
  for (int peer = 1; peer < size(); ++peer) {
    const auto& arrival = arrivals[static_cast<std::size_t>(peer - 1)];
    if (!is_complete && !(arrival->is_completed() && arrival->exception() == nullptr)) continue;
    Tensors copy{report.front().clone()};
    try {
      sent.push_back(required(do_send(copy, peer, tag), *this, "send"));
    } catch (const std::exception&) {
      if (is_complete) throw;
    }
  }
  for (const auto& each : sent) {
    try {
      each->wait(left_of(deadline));
    } catch (const std::exception&) {
      if (is_complete) throw;
    }
  }
}

}  // namespace gradwire
