// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// A newcomer follows the members of an epoch while they train: it gets the state at a step boundary in the background,
// and then a tape of the steps after it, which it does with the results that the members got (tape_internal.h). When it
// is as far as they are, it takes part in the next epoch, and lacks nothing. docs/decisions/0036 has the reasons.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gradwire/base/mutex.h"
#include "gradwire/base/process.h"
#include "gradwire/elastic/epoch_store_internal.h"
#include "gradwire/elastic/mirror_group_internal.h"
#include "gradwire/elastic/snapshot_memory_internal.h"
#include "gradwire/elastic/state_transfer_internal.h"
#include "gradwire/elastic/tape_internal.h"
#include "gradwire/elastic/traffic_watch_internal.h"
#include "gradwire/elastic/training_state_internal.h"
#include "gradwire/process_group/process_group.h"

namespace gradwire::internal {

// So many bytes of the tape the newcomer holds that it has not used: the rest waits on the member, which sees by it
// whether the newcomer is too slow.
inline constexpr std::size_t kNewcomerHolds = std::size_t{64} << 20;

// The state at the boundary before `step`. Several guides may read one snapshot at the same time.
struct StateSnapshot {
  std::int64_t step = 0;
  StateSource source = {};          // copies
  std::string orders = {};          // TrainingState::bucket_orders()
  std::string shared = {};          // TrainingState::save_shared()
  MirrorGroup::Traits traits = {};  // of the epoch's group
  std::size_t bytes = 0;            // of the tensors and the rest
};

// Copies the state, into `memory` as far as there is room. `memory` may be null.
StateSnapshot snapshot_of(const TrainingState& state, std::int64_t step, MirrorGroup::Traits traits,
                          SnapshotMemory* memory);

// Makes the group of the members of the epoch, in rank order, and the newcomer, which is the last rank, with the keys
// of the store that it is given. Collective.
using MakeFollowingGroup = std::function<std::shared_ptr<ProcessGroup>(const std::shared_ptr<Store>& keys)>;

// The part of one member of the epoch in one newcomer's following. Owns a thread, on which everything happens, so
// neither a slow newcomer nor one that dies keeps the member waiting. One thread calls the methods.
class Guide final {
 public:
  // `keys` throws PeerError once the newcomer is gone. `tape`: of this member, which is the last rank of the epoch;
  // null on the others. The newcomer does its steps. `watch`: what goes to the newcomer yields to these calls.
  Guide(MakeFollowingGroup make_group, std::shared_ptr<Store> keys, std::shared_ptr<const StateSnapshot> snapshot,
        std::shared_ptr<TapeReader> tape, std::shared_ptr<const TrafficWatch> watch);
  // Aborts.
  ~Guide();
  Guide(const Guide&) = delete;
  Guide& operator=(const Guide&) = delete;

  // The epoch stops before `step`, and the newcomer shall do the steps up to there: the thread goes on until it has
  // sent them. A newcomer that has not got the state yet gets an error: the members would wait for it.
  void end(std::int64_t step);
  // The epoch is over: the newcomer gets an error.
  void abort(const std::string& reason);
  // Whether the thread has ended.
  bool has_ended() const GRADWIRE_EXCLUDES(mutex_);
  // Whether there is a tape, and the newcomer will not get all of it.
  bool gave_up() const { return tape_ != nullptr && tape_->gave_up(); }

 private:
  void run();
  // Returns false when the tape gave up.
  bool send_tape(ProcessGroup& group);
  void wait_for_end();

  const MakeFollowingGroup make_group_;
  const std::shared_ptr<TapeReader> tape_;
  YieldingSender sender_;  // the thread's
  const std::shared_ptr<EpochLoss> over_ = std::make_shared<EpochLoss>();
  const std::shared_ptr<Store> keys_;
  std::shared_ptr<const StateSnapshot> snapshot_;  // until the thread has sent it
  mutable Mutex mutex_;
  ConditionVariable changed_;
  bool has_given_state_ GRADWIRE_GUARDED_BY(mutex_) = false;
  bool finishes_ GRADWIRE_GUARDED_BY(mutex_) = false;
  std::shared_ptr<ProcessGroup> group_ GRADWIRE_GUARDED_BY(mutex_);
  std::string aborted_ GRADWIRE_GUARDED_BY(mutex_);  // why; empty: it was not
  bool ended_ GRADWIRE_GUARDED_BY(mutex_) = false;
  Thread thread_;  // the last: it uses the others until it is joined
};

// What the newcomer gets first.
struct FollowingBegin {
  std::int64_t step = 0;
  std::int64_t hash = 0;            // of the tensors of the state
  MirrorGroup::Traits traits = {};  // of the epoch's group
  std::string orders = {};
  std::string shared = {};
};

// The newcomer's part.
class Follower final {
 public:
  // Collective with the guides. From then on a thread receives the state at the boundary, and after that the tape.
  // `state`, which tells what need not be sent, may change meanwhile.
  Follower(std::shared_ptr<ProcessGroup> group, const TrainingState& state);
  // Aborts the group when the tape has not ended.
  ~Follower();
  Follower(const Follower&) = delete;
  Follower& operator=(const Follower&) = delete;

  const FollowingBegin& begin() const noexcept { return begin_; }
  // Whether take_state() returns without waiting.
  bool has_state() const GRADWIRE_EXCLUDES(mutex_);
  // Waits for the state at the boundary, and takes it over. Throws what the group throws. Once.
  void take_state(TrainingState& state);
  const std::shared_ptr<TapePlayer>& player() const noexcept { return player_; }
  // The last step that the members had begun when they sent what has come.
  std::int64_t members_step() const GRADWIRE_EXCLUDES(mutex_);

 private:
  void receive(StateSource& source);
  void receive_state(const StateSource& source) GRADWIRE_EXCLUDES(mutex_);
  void receive_tape() GRADWIRE_EXCLUDES(mutex_);

  const std::shared_ptr<ProcessGroup> group_;
  const int guide_;  // the rank whose steps are on the tape
  FollowingBegin begin_;
  const std::shared_ptr<TapePlayer> player_ = std::make_shared<TapePlayer>();
  mutable Mutex mutex_;
  ConditionVariable changed_;
  std::optional<StateParcel> parcel_ GRADWIRE_GUARDED_BY(mutex_);  // until take_state()
  std::exception_ptr error_ GRADWIRE_GUARDED_BY(mutex_);           // why there is none
  std::int64_t members_step_ GRADWIRE_GUARDED_BY(mutex_) = -1;
  bool ended_ GRADWIRE_GUARDED_BY(mutex_) = false;
  Thread thread_;  // the last: it uses the others until it is joined
};

}  // namespace gradwire::internal
