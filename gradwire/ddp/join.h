// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Training on uneven inputs: a rank that has no more inputs still takes part in the collectives of the other ranks.
//
//   {
//     gradwire::Join join({ddp, optimizer});            // on every rank
//     for (auto& [x, target] : loader) { ... }          // a different number of batches on each rank
//     join.finish();                                    // returns when all ranks have joined
//   }
//
// A rank joins when it calls finish() or leaves the scope. A rank that has not joined is active. A rank that has joined
// runs the main hooks of all joinables once for every iteration of the active ranks. When all ranks have joined, every
// rank runs the post hooks.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gradwire/base/error.h"
#include "gradwire/process_group/process_group.h"

namespace gradwire {

class ChangingRanks;
class Join;

// The options must be the same on all ranks.
struct JoinOptions {
  // False: the Join does nothing. For inputs that are known to be even.
  bool enable = true;
  // True: every rank throws EarlyTermination as soon as one rank has joined. For models whose forward() makes
  // collectives of its own.
  bool throw_on_early_termination = false;
  // The divisor of DistributedDataParallel's sums. True: the size of the group, so every sample has the same weight in
  // all iterations. False: the number of active ranks.
  bool divide_by_initial_world_size = true;
};

// One iteration. The same on all ranks.
struct JoinRound {
  std::uint64_t number = 0;          // the number of the iteration in this Join, from 1
  int active = 0;                    // the number of active ranks
  int highest_active = -1;           // the highest active rank: the other ranks copy state, such as buffers, from it
  std::vector<bool> is_active = {};  // by rank
};

// The end of a Join. `last_joiner` is the same on all ranks.
struct JoinEnd {
  bool is_last_joiner = false;  // true: this rank was active in the last iteration (several ranks may be)
  int last_joiner = -1;         // the highest rank that was active in the last iteration: its model saw all iterations
};

// The part of one joinable on a rank that has joined. The thread that calls Join::finish() makes all calls.
class JoinHook {
 public:
  virtual ~JoinHook() = default;
  // Makes the collectives that the active ranks make in one iteration, in the same order. An exception ends the Join;
  // see Join. The default does nothing.
  virtual void main_hook(const JoinRound& round);
  // Called once on every rank, after all ranks have joined. The default does nothing.
  virtual void post_hook(const JoinEnd& end);
  // Whether this rank, which is active, still has to make collectives of the present iteration. `begun`: the joinable
  // has called notify() in this iteration. Where a rank has joined, and would wait for these collectives, Join asks
  // before it lets another joinable, or the next iteration, begin. The default returns false.
  virtual bool is_unfinished(bool begun) const;
  // This rank leaves the Join with an error, `what`, and does not make the collectives of the present iteration that
  // are left. Tells the ranks that wait in them. Returns whether it has told them: then the hooks behind this one are
  // not called, because no rank comes to their collectives. `begun`: as above, or main_hook() has been called. The
  // default returns false.
  virtual bool abandon_hook(bool begun, const std::string& what) noexcept;
};

// A participant of a Join: DistributedDataParallel, a sharded optimizer, or a class of the user's own. A joinable calls
// Join::notify(*this) before the collectives of each iteration. A copy is in no Join, and an assignment
// changes nothing of that. Not thread-safe.
class Joinable {
 public:
  Joinable() = default;
  Joinable(const Joinable&) noexcept {}
  Joinable& operator=(const Joinable&) noexcept { return *this; }
  virtual ~Joinable() = default;
  // Returns the hook for one Join. The constructor of the Join calls this method on all ranks, so the method may be
  // collective. The Join owns the hook.
  virtual std::unique_ptr<JoinHook> join_hook(const JoinOptions& options) = 0;
  // The device of the tensors in Join's own collectives. Join asks the first joinable.
  virtual c10::Device join_device() const = 0;
  // The group of Join's collectives. All joinables of one Join return the same group.
  virtual std::shared_ptr<ProcessGroup> join_process_group() const = 0;

 private:
  friend class Join;
  Join* join_ = nullptr;
};

// A rank has no more inputs, and JoinOptions::throw_on_early_termination is set. Groups and joinables stay usable.
class EarlyTermination final : public Error {
 public:
  using Error::Error;
};

// The scope of one training on uneven inputs. The joinables must outlive the Join, and each joinable is in one Join at
// a time. The Join uses a duplicate of the joinables' group, or the group itself when it cannot be duplicated.
//
// In each iteration the joinables make their collectives in the order in which the Join got them. Each joinable ends
// its collectives before the next one begins: for example, DDP runs one backward pass for each forward pass, and the
// optimizer's step follows. A forward without gradients (NoGradGuard), or within no_sync(), is an iteration too. A
// synchronized forward needs its backward pass: ranks that have joined take part in it, and wait for it. So once a rank
// has joined, a rank that begins anything else first (the forward of another DistributedDataParallel, its own next
// forward, finish()) gets an InvalidArgument, and its Join has ended.
//
// When a rank leaves the Join with an exception, the other ranks get a PeerError that names the rank, and that quotes
// an exception of finish() or the text of abandon(). This holds if the group can be duplicated. A
// DistributedDataParallel between whose forward and backward pass the rank has left is at its end then, and so is a
// ZeroRedundancyOptimizer before whose step it has left.
//
// In an elastic job (elastic/elastic.h) a Join begins and ends within one call of the step function. An iteration and
// finish() throw InvalidArgument when the ranks have changed since the Join began. Not thread-safe.
class Join {
 public:
  // Collective in the joinables' group. Throws InvalidArgument when there are no joinables, when the groups of the
  // joinables differ, and when a joinable is in another Join; throws what join_hook() and the group throw.
  explicit Join(std::vector<std::reference_wrapper<Joinable>> joinables, JoinOptions options = {});
  // Calls finish(), and throws what finish() throws, unless the scope is left by an exception.
  ~Join() noexcept(false);
  Join(const Join&) = delete;
  Join& operator=(const Join&) = delete;

  // Joins: runs the main hooks until all ranks have joined, then the post hooks. Throws EarlyTermination, and what the
  // hooks and the collectives throw. The Join has then ended. A second call does nothing.
  void finish();

  // Ends this rank's part as an exception that leaves the scope does. The other ranks' errors quote `what`. Does
  // nothing after finish() or a call before.
  void abandon(const std::string& what) noexcept;

  // Tells the Join of `joinable` that this rank takes part in an iteration with data, and returns the iteration. The
  // call of the first joinable is collective; the calls of the others return the same iteration. The result is valid
  // until the next iteration. Returns null when `joinable` is in no Join, or the Join is not enabled. Throws
  // EarlyTermination, what the collective throws, and InvalidArgument when the first joinable of this Join has not
  // called notify() yet, and when a rank that has joined waits for another joinable (JoinHook::is_unfinished()).
  static const JoinRound* notify(Joinable& joinable);

 private:
  void require_same_ranks() const;
  void require_finished(std::size_t before, const char* what) const;
  void exchange(bool active);
  void shadow();
  void leave() noexcept;
  void fail(const std::string& what) noexcept;
  void abort(const std::string& what) noexcept;

  const std::vector<std::reference_wrapper<Joinable>> joinables_;
  const JoinOptions options_;
  const int exceptions_before_;
  std::shared_ptr<ProcessGroup> group_;
  bool own_group_ = false;                         // group_ is a duplicate, for this Join alone
  std::shared_ptr<const ChangingRanks> changing_;  // the joinables' group, where its ranks may change
  std::weak_ptr<const ProcessGroup> ranks_;        // what its calls went to when the Join began
  c10::Device device_ = c10::kCPU;
  std::vector<std::unique_ptr<JoinHook>> hooks_;
  JoinRound round_;
  std::vector<bool> begun_;               // by joinable: it has begun its part of the present iteration
  std::optional<std::size_t> shadowing_;  // the hook whose main_hook() runs; not given: none
  JoinEnd end_;
  bool finished_ = false;
};

}  // namespace gradwire
