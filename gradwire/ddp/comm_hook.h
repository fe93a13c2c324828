// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Communication hooks: what happens to a bucket of gradients between the ranks.
//
// A hook is straight-line code over the group that the bucket hands it:
//
//   ddp.register_comm_hook(gradwire::make_comm_hook([](gradwire::GradBucket& bucket) {
//     bucket.buffer().div_(bucket.divisor());
//     bucket.group().all_reduce({bucket.buffer()})->wait();
//     return bucket.buffer();
//   }));
//
// It runs on a lane (see lane_scope.h), where every collective is done when its call returns. Collectives of two
// buckets never meet, so a hook may have several stages. What the hook returns becomes the gradients: 1-D, contiguous,
// as many elements as buffer(), its dtype and device. DDP does not divide when there is a hook: the hook does, by
// bucket.divisor().
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "gradwire/ddp/grad_bucket.h"
#include "gradwire/process_group/process_group.h"
#include "gradwire/process_group/work.h"

namespace gradwire {

// How DDP may treat a hook. The defaults suit any hook and promise nothing.
struct HookTraits {
  // For messages.
  std::string name = "user hook";
  // The hook may run for two buckets at once, on different threads. Otherwise it is called for one bucket at a time, in
  // bucket order.
  bool parallel_safe = false;
  // The hook makes one collective and never waits: over a group that cannot be duplicated it may be launched and its
  // future awaited at the end of backward.
  bool single_collective = false;
  // Groups besides DDP's own that the hook uses; DDP makes duplicates for its lanes when the hook is registered
  // (collective in those groups).
  std::vector<std::shared_ptr<ProcessGroup>> groups = {};
  // The hook and its options as text, as in "power_sgd:rank=4": DDP throws a MismatchError where the ranks' differ.
  // Empty: the name. A hook that the other ranks need not have, as one that only logs, takes that of the hook it wraps.
  std::string identity = {};
};

// What a hook remembers from one iteration to the next: tensors, numbers and strings. Values under keys that begin with
// "local/" are this rank's own, all others are the same on all ranks. Tensors are copies, on the CPU. State that
// belongs to a parameter has the parameter's name at the end of its key, so that it outlives other buckets.
using HookState = std::map<std::string, c10::IValue>;

// Derive for a hook with state; make_comm_hook() turns callables into one.
class CommHook {
 public:
  explicit CommHook(HookTraits traits = {}) : traits_(std::move(traits)) {}
  virtual ~CommHook() = default;
  CommHook(const CommHook&) = delete;
  CommHook& operator=(const CommHook&) = delete;

  // Starts (and on a lane: does) what is to be done with `bucket`. The future holds the tensor that becomes the
  // gradients. Any exception, thrown or in the future, ends DDP on this rank with that exception and on the others with
  // a PeerError that quotes it.
  virtual Future run(GradBucket& bucket) = 0;

  // Called once an iteration, on the thread of the backward pass, when all gradients are in place, before backward()
  // returns. Must not call the DDP object. Default: nothing.
  virtual void end_iteration() {}

  // The memory of the hook, for a checkpoint, and back again. Between iterations only. A hook without memory has an
  // empty state. load_state_dict() replaces all there was; throws InvalidArgument, and changes nothing, for a state
  // that is not this hook's.
  virtual HookState state_dict() const { return {}; }
  virtual void load_state_dict(const HookState& state);

  const HookTraits& traits() const noexcept { return traits_; }
  // What all ranks' hooks must have in common: see HookTraits.
  const std::string& identity() const noexcept { return traits_.identity.empty() ? traits_.name : traits_.identity; }

 private:
  const HookTraits traits_;
};

namespace internal {

inline Future as_future(Future future) { return future; }
inline Future as_future(at::Tensor tensor) { return completed_future(std::move(tensor)); }

template <class State, class Callable>
class CallableHook final : public CommHook {
 public:
  CallableHook(State state, Callable callable, HookTraits traits)
      : CommHook(std::move(traits)), state_(std::move(state)), callable_(std::move(callable)) {}
  Future run(GradBucket& bucket) override { return as_future(callable_(state_, bucket)); }

 private:
  State state_;
  Callable callable_;
};

struct NoState {};

}  // namespace internal

// A hook out of `callable(state, bucket)`, which returns an at::Tensor or a Future. The hook owns `state`, of any type
// (a shared_ptr shares it).
template <class State, class Callable>
requires std::is_invocable_v<Callable&, State&, GradBucket&> std::shared_ptr<CommHook> make_comm_hook(
    State state, Callable callable, HookTraits traits = {}) {
  return std::make_shared<internal::CallableHook<State, Callable>>(std::move(state), std::move(callable),
                                                                   std::move(traits));
}

// A hook out of `callable(bucket)`.
template <class Callable>
requires std::is_invocable_v<Callable&, GradBucket&> std::shared_ptr<CommHook> make_comm_hook(Callable callable,
                                                                                              HookTraits traits = {}) {
  auto without_state = [callable = std::move(callable)](internal::NoState&, GradBucket& bucket) mutable {
    return callable(bucket);
  };
  return make_comm_hook(internal::NoState{}, std::move(without_state), std::move(traits));
}

// The one tensor in a completed future: of a hook (a tensor), or of a collective (a list with one tensor). Throws
// InvalidArgument for anything else; rethrows its error.
at::Tensor tensor_of(c10::ivalue::Future& future);

// Calls hook.run(bucket) and returns its future. Throws what the hook throws, and InvalidArgument, with the hook's
// name, for a null future. For DDP, and for hooks that wrap others.
Future run_hook(CommHook& hook, GradBucket& bucket);

// Runs the hook to its end and returns its tensor. Throws what run_hook() throws, the error that the future holds, and
// InvalidArgument for a future of anything but one tensor (see tensor_of()).
at::Tensor result_of(CommHook& hook, GradBucket& bucket);

// A future of tensor_of(collective): what a hook returns that ends with a collective.
Future tensor_future(const std::shared_ptr<Work>& collective);

}  // namespace gradwire
