// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The base class of groups that treat all calls alike: each collective and each message arrives as one value.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "gradwire/process_group/group_call.h"
#include "gradwire/process_group/process_group.h"

namespace gradwire {

// Derive from CallGroup instead of ProcessGroup to count or delay all calls, to pass them on to one of several groups,
// or to hand them to an engine. A call that is added to ProcessGroup is added here and in group_call.h; a class that
// passes calls on needs no change. Methods of ProcessGroup that are not in group_call.h (dup, split, allocate,
// monitored_barrier, abort, shutdown, supports, multiplies_as_it_sums) keep their own virtuals.
class CallGroup : public ProcessGroup {
 public:
  // Runs `copy`, which copies `inputs` on the CPU for the call that comes next: when the collectives that were called
  // before, and that write there, have ended on this rank, so that it reads what they wrote, and before the next call.
  // `copy` must not throw. Default: at once, for groups whose calls end before they return.
  virtual void before_next_call(const Tensors& inputs, std::function<void()> copy) {
    static_cast<void>(inputs);
    copy();
  }

 protected:
  using ProcessGroup::ProcessGroup;

  // Starts `call` and returns its Work, never null. The arguments were checked. The lists and tensors in `call` are the
  // caller's: `call` is valid until do_call() returns. Throws as the virtuals of ProcessGroup do. Any thread may call,
  // several at once.
  virtual std::shared_ptr<Work> do_call(GroupCall& call) = 0;

 private:
  std::shared_ptr<Work> hand_over(GroupCall call) { return do_call(call); }

  std::shared_ptr<Work> do_broadcast(Tensors& tensors, const BroadcastOptions& options) final {
    return hand_over(BroadcastCall{tensors, options});
  }
  std::shared_ptr<Work> do_all_reduce(Tensors& tensors, const AllReduceOptions& options) final {
    return hand_over(AllReduceCall{tensors, options});
  }
  std::shared_ptr<Work> do_reduce(Tensors& tensors, const ReduceOptions& options) final {
    return hand_over(ReduceCall{tensors, options});
  }
  std::shared_ptr<Work> do_all_gather(std::vector<Tensors>& outputs, Tensors& inputs,
                                      const AllGatherOptions& options) final {
    return hand_over(AllGatherCall{outputs, inputs, options});
  }
  std::shared_ptr<Work> do_all_gather_into_tensor(at::Tensor& output, at::Tensor& input,
                                                  const AllGatherOptions& options) final {
    return hand_over(AllGatherIntoTensorCall{output, input, options});
  }
  std::shared_ptr<Work> do_gather(std::vector<Tensors>& outputs, Tensors& inputs, const GatherOptions& options) final {
    return hand_over(GatherCall{outputs, inputs, options});
  }
  std::shared_ptr<Work> do_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                   const ScatterOptions& options) final {
    return hand_over(ScatterCall{outputs, inputs, options});
  }
  std::shared_ptr<Work> do_reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                          const ReduceScatterOptions& options) final {
    return hand_over(ReduceScatterCall{outputs, inputs, options});
  }
  std::shared_ptr<Work> do_reduce_scatter_tensor(at::Tensor& output, at::Tensor& input,
                                                 const ReduceScatterOptions& options) final {
    return hand_over(ReduceScatterTensorCall{output, input, options});
  }
  std::shared_ptr<Work> do_all_to_all(Tensors& outputs, Tensors& inputs, const AllToAllOptions& options) final {
    return hand_over(AllToAllCall{outputs, inputs, options});
  }
  std::shared_ptr<Work> do_all_to_all_single(at::Tensor& output, at::Tensor& input,
                                             std::vector<std::int64_t>& output_splits,
                                             std::vector<std::int64_t>& input_splits,
                                             const AllToAllOptions& options) final {
    return hand_over(AllToAllSingleCall{output, input, output_splits, input_splits, options});
  }
  std::shared_ptr<Work> do_barrier(const BarrierOptions& options) final { return hand_over(BarrierCall{options}); }
  std::shared_ptr<Work> do_send(Tensors& tensors, int destination, int tag) final {
    return hand_over(SendCall{tensors, destination, tag});
  }
  std::shared_ptr<Work> do_recv(Tensors& tensors, int source, int tag) final {
    return hand_over(RecvCall{tensors, source, tag});
  }
  std::shared_ptr<Work> do_recv_anysource(Tensors& tensors, int tag) final {
    return hand_over(RecvAnySourceCall{tensors, tag});
  }
};

// As CallGroup::before_next_call(), for any group; at once for groups of other classes.
inline void before_next_call(ProcessGroup& group, const Tensors& inputs, std::function<void()> copy) {
  auto* const calls = dynamic_cast<CallGroup*>(&group);
  calls == nullptr ? copy() : calls->before_next_call(inputs, std::move(copy));
}

}  // namespace gradwire
