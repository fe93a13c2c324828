// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Communication hooks. A hook reduces one bucket of gradients over the ranks.
//
// A hook is straight-line code over the bucket's group:
//
//   ddp.register_comm_hook(gradwire::make_comm_hook([](gradwire::GradBucket& bucket) {
//     bucket.buffer().div_(bucket.divisor());
//     bucket.group().all_reduce({bucket.buffer()})->wait();
//     return bucket.buffer();
//   }));
//
// The hook runs on a lane (lane_scope.h), or on the thread of the backward pass when there are no lanes. On a lane
// every collective is done when its call returns. Collectives of two buckets never meet, so a hook may have several
// stages.
//
// The tensor that a hook returns becomes the gradients of the bucket. The tensor is 1-D and contiguous, and has the
// number of elements, the dtype and the device of bucket.buffer(). DDP does not divide the result of a hook: the hook
// divides by bucket.divisor().
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

// How DDP may treat a hook. The defaults are right for every hook.
struct HookTraits {
  // The name of the hook in messages.
  std::string name = "user hook";
  // True: the hook may run for two buckets at once, on different threads. False: DDP calls the hook for one bucket at a
  // time, in bucket order.
  bool parallel_safe = false;
  // True: one collective at most goes on when the hook returns, and the hook's future ends with it. Over a group that
  // cannot be duplicated, DDP may then start the hook for several buckets, and wait for their futures at the end of the
  // backward pass.
  bool single_collective = false;
  // The groups that the hook uses besides DDP's own group. DDP makes duplicates of these groups for its lanes when the
  // hook is registered; that is collective in these groups.
  std::vector<std::shared_ptr<ProcessGroup>> groups = {};
  // The hook and its options as text, as in "power_sgd:rank=4". Empty: the name. When the identities of the ranks
  // differ, DDP throws a MismatchError. A hook that only some ranks need, as a logging hook, takes the identity of the
  // hook that it wraps.
  std::string identity = {};
};

// The state that a hook keeps from one iteration to the next: tensors, numbers and strings by key. A value whose key
// begins with "local/" belongs to this rank; all other values are the same on all ranks. Tensors are copies on the CPU.
// The key of a parameter's state ends with the parameter's name, so the state survives a change of the buckets.
using HookState = std::map<std::string, c10::IValue>;

// The interface of a hook. Derive from CommHook for a hook with state; make_comm_hook() makes a hook of a callable.
//
// Threads: DDP calls run() on its lanes or on the thread of the backward pass, as HookTraits::parallel_safe allows. No
// run() is under way when DDP calls end_iteration().
class CommHook {
 public:
  explicit CommHook(HookTraits traits = {}) : traits_(std::move(traits)) {}
  virtual ~CommHook() = default;
  CommHook(const CommHook&) = delete;
  CommHook& operator=(const CommHook&) = delete;

  // Reduces `bucket`, or starts the reduction. Returns a future of the tensor that becomes the gradients (see the top
  // of this file). The reference `bucket` is valid until run() returns; a copy of the bucket is valid until the future
  // completes. An exception, thrown or in the future, ends the DDP object: this rank's backward pass throws the
  // exception, and the other ranks get a PeerError that quotes it.
  virtual Future run(GradBucket& bucket) = 0;

  // DDP calls revert_unused() once in each iteration, before end_iteration() and on its thread, when DDP does not apply
  // the averages of the parameters `names`: no rank used them, and their .grad is as before the iteration. `names` are
  // the same on all ranks. Each of these parameters was in GradBucket::absent() on this rank. A hook that remembers
  // what it delivered of a gradient brings its memory of these parameters back to the state before the iteration, or
  // the delivered part is lost. An exception ends the DDP object, as in run(). The default does nothing.
  virtual void revert_unused(const std::vector<std::string>& names) { static_cast<void>(names); }

  // DDP calls end_iteration() once in each iteration, on the thread of the backward pass, after all gradients are in
  // place and before backward() returns. The method must not call the DDP object. An exception ends the DDP object, as
  // in run(). The default does nothing.
  virtual void end_iteration() {}

  // state_dict() returns a copy of the hook's state, for a checkpoint. load_state_dict() replaces the whole state.
  // Call both between iterations only. A hook without state returns an empty one. load_state_dict() throws
  // InvalidArgument, and changes nothing, when `state` was not saved by such a hook.
  virtual HookState state_dict() const { return {}; }
  virtual void load_state_dict(const HookState& state);

  const HookTraits& traits() const noexcept { return traits_; }  // as given to the constructor
  // HookTraits::identity, or the name when the identity is empty. The same on all ranks.
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

// Makes a hook of `callable(state, bucket)`, which returns an at::Tensor or a Future. The hook owns `callable` and
// `state`. `state` may have any type; pass a shared_ptr to share the state with the hook.
template <class State, class Callable>
requires std::is_invocable_v<Callable&, State&, GradBucket&> std::shared_ptr<CommHook> make_comm_hook(
    State state, Callable callable, HookTraits traits = {}) {
  return std::make_shared<internal::CallableHook<State, Callable>>(std::move(state), std::move(callable),
                                                                   std::move(traits));
}

// Makes a hook of `callable(bucket)`, which returns an at::Tensor or a Future. The hook owns `callable`.
template <class Callable>
requires std::is_invocable_v<Callable&, GradBucket&> std::shared_ptr<CommHook> make_comm_hook(Callable callable,
                                                                                              HookTraits traits = {}) {
  auto without_state = [callable = std::move(callable)](internal::NoState&, GradBucket& bucket) mutable {
    return callable(bucket);
  };
  return make_comm_hook(internal::NoState{}, std::move(without_state), std::move(traits));
}

// Returns the one tensor in a completed future. The future of a hook holds a tensor; the future of a collective holds a
// list with one tensor. Throws the error that the future holds, and InvalidArgument for any other value.
at::Tensor tensor_of(c10::ivalue::Future& future);

// Calls hook.run(bucket) and returns the future, which is never null. Throws the hook's exceptions. When the hook
// returns a null future, throws an InvalidArgument that names the hook. For hooks that wrap other hooks.
Future run_hook(CommHook& hook, GradBucket& bucket);

// Runs the hook to its end and returns the resulting tensor. Throws what run_hook() and tensor_of() throw.
at::Tensor result_of(CommHook& hook, GradBucket& bucket);

// Returns a future of the one tensor that `collective` reduces, for a hook that ends with a collective. The future
// fails with the error of `collective`.
Future tensor_future(const std::shared_ptr<Work>& collective);

}  // namespace gradwire
