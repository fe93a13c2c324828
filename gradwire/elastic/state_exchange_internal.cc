// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/elastic/state_exchange_internal.h"

#include <c10/core/GradMode.h>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include "gradwire/base/error.h"
#include "gradwire/base/log.h"
#include "gradwire/base/strings.h"
#include "gradwire/ddp/byte_exchange_internal.h"
#include "gradwire/ddp/replica_sync_internal.h"
#include "gradwire/elastic/state_transfer_internal.h"

namespace gradwire::internal {
namespace {

// The memory of a member's hooks, in the order of what it is worth.
enum Memory : std::int64_t { kNoMemory, kReceivedMemory, kOwnMemory };

Memory worth_of(const MemoryStanding& memory, std::int64_t counted) {
  if (counted == kNoState || !memory.holds) return kNoMemory;
  return memory.is_received ? kReceivedMemory : kOwnMemory;
}

// What the members tell each other first.
struct Position {
  std::int64_t counted = kNoState;
  std::int64_t hash = 0;         // of the parameters
  std::int64_t whole_hash = 0;   // of the parameters and buffers
  std::int64_t memory = 0;       // kNoMemory and so on: of the hooks
  std::int64_t local_bytes = 0;  // of the hooks' local parts
  std::int64_t leavers = 0;      // of how many members that left it has the local parts
  std::int64_t followed = 0;     // whether it has its state by following

  bool operator==(const Position&) const = default;
};

std::vector<Position> gather_positions(ProcessGroup& group, const Position& mine) {
  std::vector<Position> all;
  for (const auto& numbers : gather_integers(group, {mine.counted, mine.hash, mine.whole_hash, mine.memory,
                                                     mine.local_bytes, mine.leavers, mine.followed}))
    all.push_back({numbers[0], numbers[1], numbers[2], numbers[3], numbers[4], numbers[5], numbers[6]});
  if (all[static_cast<std::size_t>(group.rank())] != mine)
    throw InternalError(
        concat("elastic training: the new epoch's group gave rank ", group.rank(), " another rank's part as its own"));
  return all;
}

// The newest step that a member of an earlier epoch has counted.
std::int64_t newest_of(const std::vector<Position>& positions) {
  std::int64_t newest = kNoState;
  for (const Position& position : positions) {
    if (position.followed == 0) newest = std::max(newest, position.counted);
  }
  return newest;
}

// Newcomers that have followed, and do not have what the members have, hold nothing.
void drop_other_states(std::vector<Position>& positions, std::int64_t newest) {
  const auto model = std::find_if(positions.begin(), positions.end(), [&](const Position& position) {
    return position.followed == 0 && position.counted == newest;
  });
  for (std::size_t rank = 0; rank < positions.size(); ++rank) {
    Position& position = positions[rank];
    if (position.followed == 0 || position.counted == kNoState) continue;
    const bool is_alike =
        model != positions.end() && position.counted == model->counted && position.hash == model->hash;
    if (is_alike) continue;
    if (position.counted == newest) {
      log::warn(
          concat("elastic training: rank ", rank, " of the new epoch has followed the members, and after step ", newest,
                 " has other parameters than rank ", model - positions.begin(),
                 "; it takes the state anew. Does its step make all calls of the members' steps, with the results "
                 "of their collectives alone?"));
    }
    position.counted = kNoState;
    position.memory = kNoMemory;
  }
}

int first_with(const std::vector<Position>& positions, std::int64_t counted) {
  const auto found = std::find_if(positions.begin(), positions.end(),
                                  [&](const Position& position) { return position.counted == counted; });
  return static_cast<int>(found - positions.begin());
}

void require_same_bits(const std::vector<Position>& positions, int donor) {
  const Position& first = positions[static_cast<std::size_t>(donor)];
  std::vector<int> others;
  for (std::size_t rank = 0; rank < positions.size(); ++rank) {
    if (positions[rank].counted == first.counted && positions[rank].hash != first.hash)
      others.push_back(static_cast<int>(rank));
  }
  if (others.empty()) return;
  throw MismatchError(concat("elastic training: after step ", first.counted, " ", name_ranks(others),
                             " of the new epoch had other parameters than rank ", donor,
                             "; a step must depend on the registered state, the step, the rank and the size alone, and "
                             "must change parameters only with averaged gradients"));
}

// Those that have counted the newest step give the state; while the job begins, the donor alone.
TransferRanks transfer_ranks(const std::vector<Position>& positions, std::int64_t newest, int donor) {
  TransferRanks ranks;
  for (std::size_t i = 0; i < positions.size(); ++i) {
    const int rank = static_cast<int>(i);
    const bool gives = newest == kNoState ? rank == donor : positions[i].counted == newest;
    (gives ? ranks.givers : ranks.takers).push_back(rank);
  }
  return ranks;
}

StateParcel pass_state(ProcessGroup& group, const TrainingState& state, const TransferRanks& ranks) {
  TransferReport report;
  StateParcel parcel = transfer_state(group, source_of(state), ranks, &report);
  if (!parcel.tensors.empty()) log_transfer(report, ranks);
  return parcel;
}

// Which members have the state of the job's hooks, and who gives it to the others.
struct Memories {
  std::vector<int> holders;  // in ascending order
  int donor = 0;
  bool all_hold = true;
};

Memories memories_of(const std::vector<Position>& positions, std::int64_t newest, int donor) {
  Memories memories;
  std::int64_t best = kReceivedMemory;
  for (const Position& position : positions) {
    if (position.counted == newest) best = std::max(best, position.memory);
  }
  for (std::size_t rank = 0; rank < positions.size(); ++rank) {
    if (positions[rank].counted == newest && newest != kNoState && positions[rank].memory == best)
      memories.holders.push_back(static_cast<int>(rank));
  }
  memories.donor = memories.holders.empty() ? donor : memories.holders.front();
  memories.all_hold = memories.holders.size() == positions.size();
  return memories;
}

// What this member has to give of its own hooks' local parts.
std::string local_to_give(const TrainingState& state, const MemoryStanding& memory, Memory worth) {
  if (worth == kNoMemory) return "";
  return memory.before.has_value() ? *memory.before : state.save_local();
}

// The local parts of the members that have left, from the first of the members with the state that has most of them:
// the others did not see the end of take_over_from_leavers().
std::vector<std::string> gather_from_leavers(ProcessGroup& group, const std::vector<Position>& positions,
                                             std::int64_t newest, std::vector<std::string> mine) {
  const auto knows = [&](const Position& position) {
    return newest != kNoState && position.counted == newest ? position.leavers : 0;
  };
  const auto most = std::max_element(positions.begin(), positions.end(),
                                     [&](const auto& a, const auto& b) { return knows(a) < knows(b); });
  const int source = static_cast<int>(most - positions.begin());
  mine.resize(static_cast<std::size_t>(knows(*most)));
  for (std::string& part : mine) part = broadcast_bytes(group, part, source);
  return mine;
}

// The entries of this member that are those of the job after `newest` steps.
std::optional<ShardedState::Version> version_of(std::int64_t counted, std::int64_t newest, bool is_donor) {
  if (newest == kNoState) {
    if (is_donor) return ShardedState::Version::counted;  // the job begins
    return std::nullopt;
  }
  if (counted == newest) return ShardedState::Version::counted;
  // This member did the newest step too, and lost it before it had the parameters of all others.
  if (counted != kNoState && counted == newest - 1) return ShardedState::Version::undone;
  return std::nullopt;
}

// `part` of the donor becomes that of the receivers.
void give_part(ProcessGroup& group, StatePart& part, const SeparateWorkers::Meeting& meeting) {
  const auto give = [&](std::string bytes) {
    return give_bytes(group, std::move(bytes), meeting.donor, meeting.receivers);
  };
  const auto counts = gather_integers(group, {static_cast<std::int64_t>(part.tensors.size())});
  part.tensors.resize(static_cast<std::size_t>(counts[static_cast<std::size_t>(meeting.donor)].front()));
  part.text = give(std::move(part.text));
  for (at::Tensor& tensor : part.tensors)
    tensor = tensor_of_text(give(tensor.defined() ? text_of_tensor(tensor.contiguous()) : std::string()));
}

std::vector<ArrivedPart> as_arrived(const std::vector<StatePart>& parts) {
  std::vector<ArrivedPart> arrived;
  for (const StatePart& part : parts) arrived.push_back({part.text, part.tensors});
  return arrived;
}

}  // namespace

bool holds_local_memory(const TrainingState& state, const MemoryStanding& memory) {
  return worth_of(memory, 0) == kOwnMemory && !local_to_give(state, memory, kOwnMemory).empty();
}

bool take_over_from_leavers(ProcessGroup& group, const TrainingState& state, bool leaves, MemoryStanding& memory) {
  if (group.size() == 1) return false;
  const bool gives = leaves && worth_of(memory, 0) == kOwnMemory;
  const std::string local = gives ? local_to_give(state, memory, kOwnMemory) : "";
  const auto all = gather_integers(group, {gives ? 1 : 0, static_cast<std::int64_t>(local.size()), leaves ? 1 : 0});
  const auto stay = std::count_if(all.begin(), all.end(), [](const auto& each) { return each[2] == 0; });
  if (stay == 0) return false;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank][0] != 0)
      memory.of_leavers.push_back(
          transfer_bytes(group, local, static_cast<std::size_t>(all[rank][1]), static_cast<int>(rank), kAllRanks));
  }
  return stay > (leaves ? 0 : 1);
}

std::int64_t exchange_state(ProcessGroup& group, TrainingState& state, std::int64_t counted, bool fresh,
                            MemoryStanding& memory, bool* has_followed) {
  const c10::NoGradGuard no_grad;
  const Memory worth = worth_of(memory, counted);
  std::string local = local_to_give(state, memory, worth);
  const TrainingState::Hashes hashes = state.hashes();
  auto positions = gather_positions(
      group, {counted, hashes.parameters, hashes.all, worth, static_cast<std::int64_t>(local.size()),
              static_cast<std::int64_t>(memory.of_leavers.size()), has_followed != nullptr && *has_followed ? 1 : 0});
  const std::int64_t newest = newest_of(positions);
  if (newest == kNoState && !fresh) return kNoState;
  drop_other_states(positions, newest);
  counted = positions[static_cast<std::size_t>(group.rank())].counted;
  if (has_followed != nullptr && newest != kNoState && counted == newest) *has_followed = false;
  const int donor = first_with(positions, newest);
  if (newest != kNoState) require_same_bits(positions, donor);
  const bool all_have_it = newest != kNoState && std::all_of(positions.begin(), positions.end(),
                                                             [&](const auto& each) { return each.counted == newest; });
  const Memories memories = memories_of(positions, newest, donor);

  // Everything is received before anything changes: an error on the way leaves this member as it was.
  const std::string orders = broadcast_bytes(group, state.bucket_orders(), donor);
  StateParcel parcel;
  if (!all_have_it) parcel = pass_state(group, state, transfer_ranks(positions, newest, donor));
  std::string shared;
  if (!memories.all_hold)
    shared = broadcast_bytes(group, group.rank() == memories.donor ? state.save_shared() : "", memories.donor);
  const std::vector<std::string> of_leavers = gather_from_leavers(group, positions, newest, memory.of_leavers);
  std::vector<std::string> parts = of_leavers;
  for (const int rank : memories.holders) {
    const Position& position = positions[static_cast<std::size_t>(rank)];
    // What a member has received is the mean of what others gave, and those that left did.
    if (position.memory == kReceivedMemory && !of_leavers.empty()) continue;
    parts.push_back(transfer_bytes(group, local, static_cast<std::size_t>(position.local_bytes), rank, kAllRanks));
  }
  std::vector<ShardedState::Deal> deals;
  std::vector<KeptEntries> kept;
  for (const AddedShards& shards : state.shards()) {
    kept.push_back(shards.kept);
    deals.push_back(exchange_shards(group, *shards.state, shards.options,
                                    version_of(counted, newest, group.rank() == donor), kept.back()));
  }

  state.keep_bucket_orders(orders);
  if (group.rank() != donor && (newest == kNoState || counted != newest))
    take_over(state, parcel, positions[static_cast<std::size_t>(donor)].whole_hash);
  for (std::size_t i = 0; i < deals.size(); ++i) {
    state.shards()[i].state->deal(deals[i]);
    state.shards()[i].kept = std::move(kept[i]);
  }
  const bool holds =
      std::find(memories.holders.begin(), memories.holders.end(), group.rank()) != memories.holders.end();
  if (!holds && group.rank() != memories.donor) state.load_shared(shared);
  if (newest != kNoState && parts.empty()) parts.emplace_back();  // nobody's memory is that of the job
  const bool any_part = std::any_of(parts.begin(), parts.end(), [](const std::string& part) { return !part.empty(); });
  if (any_part || (newest != kNoState && !memories.all_hold)) state.average_local_parts(parts);
  memory = {};
  memory.of_leavers = of_leavers;
  if (holds && worth == kOwnMemory) memory.before = std::move(local);
  if (newest != kNoState) memory.is_received = !memory.before.has_value();
  return std::max<std::int64_t>(newest, 0);
}

std::int64_t exchange_separate_state(ProcessGroup& group, TrainingState& state, std::int64_t counted, bool fresh) {
  SeparateWorkers& workers = *state.separate_workers();
  const SeparateWorkers::Meeting meeting = workers.meet(counted != kNoState, fresh);
  if (meeting.donor < 0) return kNoState;
  std::vector<StatePart> rest(state.rest_parts());
  if (!meeting.receivers.empty()) {
    if (group.rank() == meeting.donor) rest = state.save_rest();
    for (StatePart& part : rest) give_part(group, part, meeting);
  }
  // Everything has been received before anything changes.
  workers.apply_meeting();
  if (std::binary_search(meeting.receivers.begin(), meeting.receivers.end(), group.rank()))
    state.load_rest(as_arrived(rest));
  return workers.steps_ended();
}

}  // namespace gradwire::internal
