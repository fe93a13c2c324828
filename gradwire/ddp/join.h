// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Training on uneven inputs: ranks that have run out of them go on taking part in the others' collectives.
//
//   {
//     gradwire::Join join({ddp, optimizer});            // on every rank
//     for (auto& [x, target] : loader) { ... }          // a different number of batches on each rank
//     join.finish();                                    // until all ranks are here
//   }
//
// A rank joins when it calls finish(), or leaves the scope. From then on it runs the main hooks of all joinables once
// for every iteration of the ranks that have not joined, and, when all have, the post hooks.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "gradwire/base/error.h"
#include "gradwire/process_group/process_group.h"

namespace gradwire {

class Join;

// Must be the same on all ranks.
struct JoinOptions {
  // False: the context does nothing, for inputs known to be even.
  bool enable = true;
  // Every rank throws EarlyTermination as soon as one has joined. For models with collectives of their own in forward.
  bool throw_on_early_termination = false;
  // What DistributedDataParallel divides sums by: true, the size of the group, so that each sample weighs the same
  // throughout; false, the number of ranks that have not joined.
  bool divide_by_initial_world_size = true;
};

// One iteration: who takes part with data. The same on all ranks.
struct JoinRound {
  std::uint64_t number = 0;          // counts iterations of this context from 1
  int active = 0;                    // how many ranks have not joined
  int highest_active = -1;           // the highest of them: where state that ranks copy from one another comes from
  std::vector<bool> is_active = {};  // by rank
};

// How it ended: the same on all ranks but for the first.
struct JoinEnd {
  bool is_last_joiner = false;  // this rank was active in the last iteration (there may be several such ranks)
  int last_joiner = -1;         // the highest of them: whose model has seen every iteration
};

// What one joinable does on a rank that has joined.
class JoinHook {
 public:
  virtual ~JoinHook() = default;
  // Makes the collectives that the active ranks make in one iteration, in the same order. Default: nothing.
  virtual void main_hook(const JoinRound& round);
  // Once, on every rank, after all have joined. Default: nothing.
  virtual void post_hook(const JoinEnd& end);
};

// What can take part in a Join: DistributedDataParallel, a sharded optimizer, a class of yours. Before the collectives
// of an iteration it calls Join::notify(*this). Not thread-safe.
class Joinable {
 public:
  virtual ~Joinable() = default;
  // Called when a Join is made, on all ranks; may be collective. The hook is destroyed at the end of that Join.
  virtual std::unique_ptr<JoinHook> join_hook(const JoinOptions& options) = 0;
  // The device of the tensors that Join's own collectives use, and their group: the same group for all joinables of
  // one Join.
  virtual c10::Device join_device() const = 0;
  virtual std::shared_ptr<ProcessGroup> join_process_group() const = 0;

 private:
  friend class Join;
  Join* join_ = nullptr;
};

// A rank ran out of inputs and JoinOptions::throw_on_early_termination is set. Groups and joinables stay usable.
class EarlyTermination final : public Error {
 public:
  using Error::Error;
};

// The context. Collective when it is made, in the joinables' group: Join uses a duplicate of it, or the group itself
// where it has none. The joinables outlive it, and each is in one Join at a time.
//
// In each iteration the first joinable goes first, and each is done with its collectives before the next begins: one
// backward pass for each forward pass of DDP, say, and the optimizer's step after it. Iterations without a backward
// pass, or within no_sync(), count too.
//
// A rank that leaves with an exception tells the others, which get a PeerError that quotes it where the group can be
// duplicated. Not thread-safe.
class Join {
 public:
  // Throws InvalidArgument for no joinables, different groups, a joinable that is in another Join.
  explicit Join(std::vector<std::reference_wrapper<Joinable>> joinables, JoinOptions options = {});
  // Calls finish() unless it was called, or an exception is passing. Throws what it throws.
  ~Join() noexcept(false);
  Join(const Join&) = delete;
  Join& operator=(const Join&) = delete;

  // Joins: runs main hooks until all ranks have joined, then post hooks. Throws EarlyTermination, and what hooks and
  // collectives throw. A second call does nothing.
  void finish();

  // For joinables: says that this rank takes part in an iteration with data. The first joinable's call is collective;
  // those of the others look at what it brought. Null outside a Join, or in one that is not enabled. Throws
  // EarlyTermination; InvalidArgument when the first joinable was not heard of in this Join yet.
  static const JoinRound* notify(Joinable& joinable);

 private:
  void exchange(bool active);
  void shadow();
  void leave() noexcept;
  void abort(const char* what) noexcept;

  const std::vector<std::reference_wrapper<Joinable>> joinables_;
  const JoinOptions options_;
  const int exceptions_before_;
  std::shared_ptr<ProcessGroup> group_;
  bool own_group_ = false;  // a duplicate: nobody else's calls are on it
  c10::Device device_ = c10::kCPU;
  std::vector<std::unique_ptr<JoinHook>> hooks_;
  JoinRound round_;
  JoinEnd end_;
  bool finished_ = false;
};

}  // namespace gradwire
