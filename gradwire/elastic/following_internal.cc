// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/elastic/following_internal.h"

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>

#include <array>
#include <numeric>
#include <span>
#include <sstream>
#include <utility>

#include "gradwire/base/error.h"
#include "gradwire/base/interrupt.h"
#include "gradwire/base/log.h"
#include "gradwire/base/strings.h"
#include "gradwire/ddp/byte_exchange_internal.h"

namespace gradwire::internal {
namespace {

// A message before each entry: what the entry is, how many bytes follow, and how far the members are.
struct Head {
  std::int64_t kind = 0;
  std::int64_t step = 0;
  std::int64_t group = 0;
  std::int64_t signature = 0;
  std::int64_t bytes = -1;  // -1: none follow
  std::int64_t members_step = 0;
};
constexpr std::int64_t kHeadWords = 6;

// The rank whose buffers the newcomer gets (transfer_state()).
constexpr int kFirst = 0;
// How often a member that has nothing to send looks whether the newcomer is gone.
constexpr Milliseconds kLookForGone{1000};

at::Tensor tensor_of(const Head& head) {
  const std::array<std::int64_t, kHeadWords> words{head.kind,      head.step,  head.group,
                                                   head.signature, head.bytes, head.members_step};
  at::Tensor tensor = at::empty({kHeadWords}, at::TensorOptions(at::kLong));
  std::copy(words.begin(), words.end(), tensor.mutable_data_ptr<std::int64_t>());
  return tensor;
}

Head head_of(const at::Tensor& tensor) {
  const auto* words = tensor.const_data_ptr<std::int64_t>();
  return {words[0], words[1], words[2], words[3], words[4], words[5]};
}

std::string to_text(const FollowingBegin& begin) {
  return concat(begin.step, " ", begin.hash, " ", begin.traits.multiplies ? 1 : 0, " ", begin.traits.has_hosts ? 1 : 0,
                " ", begin.traits.stages_devices ? 1 : 0, " ", begin.orders.size(), "\n", begin.orders, begin.shared);
}

FollowingBegin following_begin_of(const std::string& text) {
  const std::size_t end = text.find('\n');
  std::istringstream line(text.substr(0, end));
  FollowingBegin begin;
  std::size_t orders = 0;
  line >> begin.step >> begin.hash >> begin.traits.multiplies >> begin.traits.has_hosts >>
      begin.traits.stages_devices >> orders;
  begin.orders = text.substr(end + 1, orders);
  begin.shared = text.substr(end + 1 + orders);
  return begin;
}

// All ranks give but the last.
TransferRanks ranks_of(const ProcessGroup& group) {
  TransferRanks ranks;
  ranks.givers.resize(static_cast<std::size_t>(group.size() - 1));
  std::iota(ranks.givers.begin(), ranks.givers.end(), 0);
  ranks.takers = {group.size() - 1};
  return ranks;
}

}  // namespace

StateSnapshot snapshot_of(const TrainingState& state, std::int64_t step, MirrorGroup::Traits traits,
                          SnapshotMemory* memory) {
  const c10::NoGradGuard no_grad;
  StateSnapshot snapshot;
  snapshot.step = step;
  state.wait_for_devices();
  const auto copies_of = [&](const std::vector<at::Tensor>& tensors) {
    std::vector<at::Tensor> copies;
    for (const at::Tensor& tensor : tensors) {
      copies.push_back(memory == nullptr ? contiguous_copy_on_cpu(tensor) : memory->copy(tensor));
      snapshot.bytes += tensor.nbytes();
    }
    return copies;
  };
  snapshot.source.tensors = copies_of(state.tensors());
  auto rest = std::make_shared<std::vector<StatePart>>(state.save_rest());
  for (StatePart& part : *rest) {
    snapshot.bytes += part.text.size();
    part.tensors = copies_of(part.tensors);
  }
  snapshot.source.rest_parts = rest->size();
  snapshot.source.save_rest = [rest] { return *rest; };
  snapshot.orders = state.bucket_orders();
  snapshot.shared = state.save_shared();
  snapshot.traits = traits;
  return snapshot;
}

Guide::Guide(MakeFollowingGroup make_group, std::shared_ptr<Store> keys, std::shared_ptr<const StateSnapshot> snapshot,
             std::shared_ptr<TapeReader> tape, std::shared_ptr<const TrafficWatch> watch)
    : make_group_(std::move(make_group)),
      tape_(std::move(tape)),
      sender_(std::move(watch)),
      keys_(std::make_shared<EpochStore>(std::move(keys), over_)),
      snapshot_(std::move(snapshot)),
      thread_("elastic-guide", [this] { run(); }) {}

Guide::~Guide() { abort("the member that gave the state has left the epoch"); }

void Guide::end(std::int64_t step) {
  MutexLock lock(mutex_);
  const bool has_given_state = has_given_state_;
  lock.unlock();
  if (!has_given_state) return abort("the members have stopped before the newcomer had the state");
  if (tape_ != nullptr) tape_->end(step);
  lock.lock();
  finishes_ = true;
  changed_.notify_all();
}

void Guide::abort(const std::string& reason) {
  over_->set(0, reason);
  MutexLock lock(mutex_);
  if (ended_) return;
  aborted_ = reason;
  finishes_ = true;
  changed_.notify_all();
  const std::shared_ptr<ProcessGroup> group = group_;
  lock.unlock();
  if (tape_ != nullptr) tape_->give_up(reason);
  if (group != nullptr) group->abort(reason);
}

bool Guide::has_ended() const {
  const MutexLock lock(mutex_);
  return ended_;
}

void Guide::run() {
  try {
    const std::shared_ptr<ProcessGroup> group = make_group_(keys_);
    MutexLock lock(mutex_);
    group_ = group;
    const std::string aborted = aborted_;
    lock.unlock();
    if (!aborted.empty()) group->abort(aborted);
    std::string begin;
    if (group->rank() == kFirst) {
      begin = to_text({snapshot_->step, hash_of_bits(snapshot_->source.tensors), snapshot_->traits, snapshot_->orders,
                       snapshot_->shared});
    }
    broadcast_bytes(*group, begin, kFirst);
    transfer_state(*group, snapshot_->source, ranks_of(*group), nullptr, &sender_);
    snapshot_.reset();
    lock.lock();
    has_given_state_ = true;
    lock.unlock();
    if (tape_ == nullptr) wait_for_end();
    // The ranks leave the group together: a rank that left before would be taken for dead.
    if (tape_ == nullptr || send_tape(*group)) group->barrier()->wait();
  } catch (const std::exception& error) {
    // The newcomer takes part without having followed.
    log::info(concat("elastic training: a newcomer follows no longer: ", error.what()));
    snapshot_.reset();
    if (tape_ != nullptr) tape_->give_up(error.what());
  }
  const MutexLock lock(mutex_);
  group_.reset();
  ended_ = true;
}

void Guide::wait_for_end() {
  const std::string any_key = "any";
  MutexLock lock(mutex_);
  while (!finishes_) {
    changed_.wait_for(lock, kLookForGone);
    lock.unlock();
    keys_->check(std::span(&any_key, 1));
    lock.lock();
  }
}

bool Guide::send_tape(ProcessGroup& group) {
  const int follower = group.size() - 1;
  for (;;) {
    const TapeEntry entry = tape_->next();
    if (entry.kind == TapeEntry::Kind::step) sender_.begin_step(tape_->newest_step() - entry.step);
    const Head head{.kind = static_cast<std::int64_t>(entry.kind),
                    .step = entry.step,
                    .group = entry.group,
                    .signature = entry.signature,
                    .bytes = entry.bytes.defined() ? entry.bytes.numel() : -1,
                    .members_step = tape_->newest_step()};
    group.send({tensor_of(head)}, follower)->wait();
    if (head.bytes > 0) send_in_pieces(group, entry.bytes, follower, sender_, [this] { tape_->has_passed_piece(); });
    if (entry.kind == TapeEntry::Kind::gave_up) return false;
    if (entry.kind == TapeEntry::Kind::end) return true;
  }
}

Follower::Follower(std::shared_ptr<ProcessGroup> group, const TrainingState& state)
    : group_(std::move(group)),
      guide_(group_->size() - 2),
      begin_(following_begin_of(broadcast_bytes(*group_, "", kFirst))),
      thread_("elastic-follow", [this, source = std::make_shared<StateSource>(taker_of(state))] { receive(*source); }) {
}

Follower::~Follower() {
  player_->close();
  MutexLock lock(mutex_);
  const bool ended = ended_;
  lock.unlock();
  if (!ended) group_->abort("the newcomer follows no longer");
}

bool Follower::has_state() const {
  const MutexLock lock(mutex_);
  return parcel_.has_value();
}

void Follower::take_state(TrainingState& state) {
  MutexLock lock(mutex_);
  while (!parcel_ && !error_) {
    changed_.wait_for(lock, kInterruptLook);
    lock.unlock();
    throw_if_interrupted("following an elastic job");
    lock.lock();
  }
  if (!parcel_) std::rethrow_exception(error_);
  const StateParcel parcel = *std::exchange(parcel_, std::nullopt);
  lock.unlock();
  take_over(state, parcel, begin_.hash);
  state.load_shared(begin_.shared);
}

std::int64_t Follower::members_step() const {
  const MutexLock lock(mutex_);
  return members_step_;
}

void Follower::receive(StateSource& source) {
  try {
    receive_state(source);
    source = {};  // its memory is the parcel's
    receive_tape();
  } catch (...) {
    player_->fail(std::current_exception());
    const MutexLock lock(mutex_);
    error_ = std::current_exception();
    changed_.notify_all();
  }
}

void Follower::receive_state(const StateSource& source) {
  TransferReport report;
  const TransferRanks ranks = ranks_of(*group_);
  StateParcel parcel = transfer_state(*group_, source, ranks, &report);
  log_transfer(report, ranks, "while the members trained");
  const MutexLock lock(mutex_);
  parcel_ = std::move(parcel);
  changed_.notify_all();
}

void Follower::receive_tape() {
  for (bool more = true; more;) {
    if (!player_->wait_for_room(kNewcomerHolds)) return;
    at::Tensor words = at::empty({kHeadWords}, at::TensorOptions(at::kLong));
    group_->recv({words}, guide_)->wait();
    const Head head = head_of(words);
    TapeEntry entry{.kind = static_cast<TapeEntry::Kind>(head.kind),
                    .step = head.step,
                    .group = head.group,
                    .signature = head.signature};
    if (head.bytes >= 0) entry.bytes = at::empty({head.bytes}, at::TensorOptions(at::kByte));
    if (head.bytes > 0) recv_in_pieces(*group_, entry.bytes, guide_);
    if (entry.kind == TapeEntry::Kind::gave_up) return player_->add(std::move(entry));
    more = entry.kind != TapeEntry::Kind::end;
    MutexLock lock(mutex_);
    members_step_ = head.members_step;
    lock.unlock();
    if (!more) group_->barrier()->wait();
    player_->add(std::move(entry));
  }
  const MutexLock lock(mutex_);
  ended_ = true;
}

}  // namespace gradwire::internal
