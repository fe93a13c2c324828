// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/observe/other_tag_internal.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>

#include "gradwire/base/strings.h"
#include "gradwire/observe/clock_bound_internal.h"

namespace gradwire::observe {
namespace {

// Whether the rank waits in what was found: in a ring of ranks that wait for each other, or for one that has left. Of
// other waits, what was found is the cause.
bool is_part_of(const Diagnosis& found, const Waiting& wait, const Member& partner) {
  const auto is_culprit = [&](const RankTable& rank) {
    return std::find(found.culprits.begin(), found.culprits.end(), rank.rank) != found.culprits.end();
  };
  switch (found.fault) {
    case FaultClass::deadlock:
    case FaultClass::skipped:
    case FaultClass::other_collective:
      return is_culprit(*wait.rank);
    case FaultClass::left:
      return is_culprit(*partner.rank);
    default:
      return false;  // the partner may send yet
  }
}

// Whether the rank makes no further call by itself: it waits in a call, or has left.
bool sends_no_more(const Member& partner) {
  if (partner.group->closed || partner.rank->process.has_ended) return true;
  const auto waits = [](const CallRow& call) { return call.outcome == Outcome::none && call.waited != Waited::no; };
  return std::any_of(partner.rank->groups.begin(), partner.rank->groups.end(), [&](const GroupTable& group) {
    return std::any_of(group.calls.begin(), group.calls.end(), waits);
  });
}

// Whether the table holds all calls that the rank has made in the group.
bool knows_all_calls(const GroupTable& group) { return group.calls.size() == group.next_ticket; }

// From which moment on, of the wall clock, every receive of the group that took a message is in the table of the rank
// that waits. Nothing where that is not known.
std::optional<std::int64_t> known_since(const Waiting& wait, const Member& partner) {
  if (knows_all_calls(*wait.group)) return 0;
  // No call has taken the place of another one since the receive was made.
  const bool is_last = wait.call->ticket + 1 == wait.group->next_ticket;
  if (is_last && have_one_clock(*wait.rank, *partner.rank)) return wait.wall_time();
  return std::nullopt;
}

// How many messages of each tag the partner has sent that no receive has taken or is there for.
std::map<int, std::int64_t> messages_left(const Waiting& wait, const Member& partner, std::int64_t since) {
  std::map<int, std::int64_t> left;
  for (const CallRow& call : partner.group->calls) {
    const bool was_sent = call.outcome == Outcome::none || call.outcome == Outcome::good;
    const bool counts = call.kind == CallKind::send && call.root == wait.group->rank && call.message_tag >= 0;
    if (was_sent && counts && call.called + partner.rank->wall_offset >= since) ++left[call.message_tag];
  }
  for (const CallRow& call : wait.group->calls) {
    const bool may_be_of_partner =
        call.kind == CallKind::recv_anysource || (call.kind == CallKind::recv && call.root == partner.group->rank);
    if (!may_be_of_partner || call.outcome == Outcome::refused) continue;
    if (call.outcome != Outcome::none && call.ended + wait.rank->wall_offset < since) continue;
    for (auto& [tag, messages] : left) {
      if (call.message_tag < 0 || call.message_tag == tag) --messages;
    }
  }
  return left;
}

std::string sentence(const Waiting& wait, const Member& partner) {
  const auto since = known_since(wait, partner);
  if (!since) return "";
  const int wanted = wait.call->message_tag;
  const std::map<int, std::int64_t> left = messages_left(wait, partner, *since);
  // The receive that waits is one that is there for a message of its tag.
  if (const auto own = left.find(wanted); own != left.end() && own->second >= 0) return "";
  for (const auto& [tag, messages] : left) {
    if (tag == wanted || messages <= 0) continue;
    return concat("rank ", partner.rank->rank, " sent to rank ", wait.rank->rank, " with tag ", tag, "; rank ",
                  wait.rank->rank, " waits for tag ", wanted,
                  wait.group->path == "default" ? "" : concat(", in group ", wait.group->path));
  }
  return "";
}

}  // namespace

std::string sent_with_other_tag(const std::vector<GroupView>& groups, const Diagnosis& found) {
  for (const GroupView& group : groups) {
    for (const Waiting& wait : group.pending()) {
      if (wait.call->kind != CallKind::recv || wait.call->message_tag < 0 || wait.call->waited == Waited::no) continue;
      for (const Member& partner : group.absent_from(wait)) {
        if (!is_part_of(found, wait, partner) || partner.group == nullptr || !sends_no_more(partner)) continue;
        if (std::string words = sentence(wait, partner); !words.empty()) return words;
      }
    }
  }
  return "";
}

}  // namespace gradwire::observe
