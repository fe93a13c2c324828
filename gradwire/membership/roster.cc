// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/membership/roster.h"

#include <algorithm>
#include <set>
#include <utility>

#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "gradwire/membership/reachability.h"

namespace gradwire::membership {
namespace {

using Standing = Roster::Standing;

class Decider {
 public:
  Decider(Roster& roster, std::int64_t number) : roster_(roster), number_(number) {}
  std::vector<Put> take() { return std::move(puts_); }

  void operator()(const Joined& event) {
    const std::string refusal = why_refused(event);
    if (!refusal.empty()) return put(refused_key(number_), refusal);
    if (roster_.version.empty()) {
      roster_.version = event.version;
      roster_.program = event.program;
    }
    roster_.members[number_] = {.identity = event.identity, .host = event.host};
    if (event.follows) {
      const bool may = may_follow();
      if (may) let_follow(number_);
      put(followed_key(number_), std::to_string(may ? roster_.epoch : 0));
    }
    put(admitted_key(number_), std::to_string(roster_.epoch + 1));
    ask_for_newcomers();
  }
  void operator()(const CaughtUp& event) {
    Roster::Entry* const entry = known(event.member);
    if (entry == nullptr) return;
    const bool is_back = !std::exchange(entry->is_awaited, true);
    const bool has_followed = event.epoch == roster_.epoch && std::exchange(entry->follows, false);
    if (is_back || has_followed) ask_for_newcomers();
  }
  void operator()(const CannotFollow& event) {
    Roster::Entry* const entry = known(event.member);
    if (entry == nullptr || event.epoch != roster_.epoch || !std::exchange(entry->follows, false)) return;
    entry->is_awaited = false;
    ask_for_newcomers();
  }
  void operator()(const Ready& event) {
    if (Roster::Entry* entry = known(event.member); entry != nullptr && event.epoch == roster_.epoch)
      entry->standing = Standing::waiting;
  }
  void operator()(const Leaving& event) {
    Roster::Entry* const entry = known(event.member);
    if (entry == nullptr) return;
    entry->leaves = true;
    ask_for_change();
  }
  void operator()(const Left& event) { remove(event.member); }
  void operator()(const Died& event) {
    const Roster::Entry* const entry = known(event.member);
    if (entry == nullptr) return;
    if (entry->standing == Standing::running) put(lost_key(roster_.epoch), std::to_string(event.member));
    remove(event.member);
    // Nobody is left who would miss these members. If they were only taken for dead, they must not train on beside the
    // next epoch.
    if (roster_.epoch > 0 && !roster_.is_over() && present() == 0) ask_for_change();
    // A member that was only taken for dead finds this when it comes back.
    put(refused_key(event.member),
        concat("the job went on without this member, because it ", event.how, "; start it again as a new member"));
  }
  void operator()(const Began& event) {
    if (event.epoch != roster_.epoch) return;
    roster_.begun = true;
    if (Roster::Entry* const entry = known(event.member); entry != nullptr) entry->had_state = true;
  }
  void operator()(const Reached&) {}  // for launchers
  void operator()(const Done& event) {
    if (known(event.member) == nullptr || roster_.is_over()) return;
    roster_.finished = true;
    put_end({.number = roster_.epoch + 1, .finished = true, .members = {}});
  }
  void operator()(const StateLost& event) {
    if (known(event.member) == nullptr || event.epoch != roster_.epoch || roster_.is_over()) return;
    roster_.lost = true;
    put_end({.number = roster_.epoch + 1, .lost = true, .members = {}});
  }
  void operator()(const Hurry&) { roster_.hurried = true; }
  void operator()(const StoreRestored&) { ask_for_change(); }
  void operator()(const Slow& event) {
    Roster::Entry* const entry = known(event.member);
    if (!event.drop || entry == nullptr || entry->dropped || event.epoch != roster_.epoch) return;
    if (!roster_.options.replay.empty()) return;  // it left where it left then
    const auto stay = std::count_if(roster_.current.begin(), roster_.current.end(), [&](std::int64_t member) {
      const Roster::Entry& other = roster_.members.at(member);
      return member != event.member && other.standing != Standing::gone && !other.leaves && !other.dropped;
    });
    if (stay < roster_.options.min) return;
    entry->dropped = true;
    put(dropped_key(event.member), kDroppedSlow);
    ask_for_change();
  }
  void operator()(const Unreachable& event) {
    if (event.epoch == roster_.epoch) roster_.unreachable.push_back(event);
  }

  void decide_epoch() {
    roster_.lacking = 0;
    if (roster_.is_over()) return;
    if (std::any_of(roster_.current.begin(), roster_.current.end(),
                    [&](std::int64_t member) { return standing(member) == Standing::running; }))
      return;
    // A member that has not caught up may be stuck, or in a long step. It sees that the epoch stops.
    for (auto& [member, entry] : roster_.members) {
      if (!std::exchange(entry.follows, false)) continue;
      entry.is_awaited = false;
      ask_for_change();
    }
    for (const OutOfReach& each : whom_to_drop(roster_)) {
      roster_.members.at(each.member).dropped = true;
      put(dropped_key(each.member), concat("it and member ", each.peer, " do not reach each other"));
    }
    roster_.unreachable.clear();
    const bool replays = !roster_.options.replay.empty();
    const std::vector<std::int64_t> next = replays ? cast() : candidates();
    const int needed = roster_.epoch == 0 && !roster_.hurried ? roster_.options.first : roster_.options.min;
    if (next.empty()) return;
    if (const int present = static_cast<int>(next.size()); !replays && present < needed) {
      roster_.lacking = needed - present;
      return;
    }
    Epoch epoch;
    epoch.number = ++roster_.epoch;
    epoch.fresh = !roster_.begun;
    epoch.played = replays;
    roster_.followers = 0;
    for (const std::int64_t member : next) {
      Roster::Entry& entry = roster_.members.at(member);
      entry.standing = Standing::running;
      epoch.members.push_back({member, entry.identity, replays ? played_host(epoch.members.size()) : entry.host});
    }
    roster_.current = next;
    roster_.change_asked = replays;  // the played job says when its epochs end
    if (replays) put_stop();
    put(epoch_key(epoch.number), to_text(epoch));
  }

 private:
  std::string why_refused(const Joined& event) const {
    if (roster_.version.empty()) return "";
    if (event.version != roster_.version) {
      return concat("this process runs gradwire ", event.version, " and the job runs gradwire ", roster_.version,
                    "; start it with the job's version");
    }
    if (event.program != roster_.program) {
      return concat("this process trains '", event.program, "' and the job trains '", roster_.program,
                    "'; a member must run the same program with the same model, optimizers and hooks");
    }
    return "";
  }

  // Those who were in the epoch first. A member that leaves has a place only where it hands something over: the first
  // of the epoch when all of it leave, since nobody else has the job's state; the others after all who stay.
  std::vector<std::int64_t> candidates() const {
    std::vector<std::int64_t> in_order;
    const auto add = [&](std::int64_t member) {
      const Roster::Entry& entry = roster_.members.at(member);
      if (entry.standing != Standing::waiting || entry.dropped || !entry.is_awaited) return;
      if (std::find(in_order.begin(), in_order.end(), member) == in_order.end()) in_order.push_back(member);
    };
    for (const std::int64_t member : roster_.current) add(member);
    const std::size_t of_the_epoch = in_order.size();
    for (const auto& [member, entry] : roster_.members) add(member);
    const auto leaves = [&](std::int64_t member) { return roster_.members.at(member).leaves; };
    const auto end_of_the_epoch = in_order.begin() + static_cast<std::ptrdiff_t>(of_the_epoch);
    const bool all_leave = of_the_epoch > 0 && std::all_of(in_order.begin(), end_of_the_epoch, leaves);
    std::set<std::int64_t> chosen;
    const auto choose = [&](std::int64_t member) {
      if (static_cast<int>(chosen.size()) < roster_.options.max) chosen.insert(member);
    };
    if (all_leave) choose(in_order.front());
    for (const bool who_leave : {false, true}) {
      for (const std::int64_t member : in_order) {
        if (leaves(member) == who_leave) choose(member);
      }
    }
    std::erase_if(in_order, [&](std::int64_t member) { return !chosen.contains(member); });
    return in_order;
  }

  // The members that play those of the next epoch of the played job; empty while there are too few. A role stays with
  // its member, as far as that member is there. A member without a role can take one.
  std::vector<std::int64_t> cast() {
    const auto& replay = roster_.options.replay;
    if (roster_.epoch >= static_cast<std::int64_t>(replay.size())) return {};
    std::map<std::int64_t, std::int64_t> roles;
    std::set<std::int64_t> taken;
    const auto& played = replay[static_cast<std::size_t>(roster_.epoch)].members;
    for (const std::int64_t role : played) {
      const auto before = roster_.roles.find(role);
      if (before == roster_.roles.end() || standing(before->second) != Standing::waiting) continue;
      roles[role] = before->second;
      taken.insert(before->second);
    }
    std::vector<std::int64_t> next;
    for (const std::int64_t role : played) {
      if (!roles.contains(role)) {
        const auto free = std::find_if(roster_.members.begin(), roster_.members.end(), [&](const auto& item) {
          return item.second.standing == Standing::waiting && !taken.contains(item.first);
        });
        if (free == roster_.members.end()) return {};
        roles[role] = free->first;
        taken.insert(free->first);
      }
      next.push_back(roles[role]);
    }
    roster_.roles = std::move(roles);
    return next;
  }

  // Where the member in this place of the present epoch was in the played job.
  std::string played_host(std::size_t place) const {
    const auto& hosts = roster_.options.replay[static_cast<std::size_t>(roster_.epoch - 1)].hosts;
    return place < hosts.size() ? hosts[place] : "";
  }

  // The members of the epoch stop before the step with which the next played epoch began.
  void put_stop() {
    const auto& replay = roster_.options.replay;
    if (roster_.epoch >= static_cast<std::int64_t>(replay.size())) return;
    put(stop_key(roster_.epoch), std::to_string(replay[static_cast<std::size_t>(roster_.epoch)].first_step));
    put(change_key(roster_.epoch), "1");
  }

  Roster::Entry* known(std::int64_t member) {
    const auto found = roster_.members.find(member);
    return found == roster_.members.end() || found->second.standing == Standing::gone ? nullptr : &found->second;
  }
  Standing standing(std::int64_t member) const { return roster_.members.at(member).standing; }
  void remove(std::int64_t member) {
    Roster::Entry* const entry = known(member);
    if (entry == nullptr) return;
    entry->standing = Standing::gone;
    if (std::exchange(entry->follows, false)) ask_for_newcomers();
  }
  // The members of the present epoch that are not gone.
  std::int64_t present() const {
    return std::count_if(roster_.current.begin(), roster_.current.end(),
                         [&](std::int64_t member) { return standing(member) != Standing::gone; });
  }
  // The members that wait, and were not in the present epoch.
  std::int64_t newcomers() const {
    return std::count_if(roster_.members.begin(), roster_.members.end(), [&](const auto& item) {
      return item.second.standing == Standing::waiting && !item.second.dropped && item.second.is_awaited &&
             std::find(roster_.current.begin(), roster_.current.end(), item.first) == roster_.current.end();
    });
  }
  std::int64_t followers() const {
    return std::count_if(roster_.members.begin(), roster_.members.end(),
                         [](const auto& item) { return item.second.follows; });
  }
  // One member alone averages nothing, so there is nothing that another could follow.
  bool may_follow() const {
    return roster_.epoch > 0 && !roster_.is_over() && !roster_.change_asked && roster_.options.replay.empty() &&
           present() >= 2 && present() == static_cast<std::int64_t>(roster_.current.size()) &&
           present() + newcomers() <= roster_.options.max;
  }
  void let_follow(std::int64_t member) {
    Roster::Entry& entry = roster_.members.at(member);
    entry.follows = true;
    put(follower_key(roster_.epoch, roster_.followers++), to_text(EpochMember{member, entry.identity, entry.host}));
  }
  // The present epoch stops for members that wait, once nobody follows it.
  void ask_for_newcomers() {
    if (newcomers() > 0 && !roster_.is_over() && followers() == 0 && present() < roster_.options.max) ask_for_change();
  }
  void ask_for_change() {
    if (roster_.epoch == 0 || roster_.change_asked || !roster_.options.replay.empty()) return;
    roster_.change_asked = true;
    put(change_key(roster_.epoch), "1");
  }
  void put_end(const Epoch& end) { put(epoch_key(end.number), to_text(end)); }
  void put(std::string key, std::string value) { puts_.push_back({std::move(key), std::move(value)}); }

  Roster& roster_;
  const std::int64_t number_;
  std::vector<Put> puts_;
};

}  // namespace

void require_valid(const RosterOptions& options) {
  if (options.min < 1 || options.min > options.max || options.max > kMaxMembers) {
    throw InvalidArgument(concat("an elastic job of ", options.min, " to ", options.max,
                                 " members; the smaller number comes first, and both are from 1 to ", kMaxMembers));
  }
  if (options.first < options.min || options.first > options.max) {
    throw InvalidArgument(concat("an elastic job that begins with ", options.first, " members; give a number from ",
                                 options.min, " to ", options.max));
  }
}

std::vector<Put> apply(Roster& roster, std::int64_t number, const Event& event) {
  Decider decider(roster, number);
  std::visit(decider, event);
  decider.decide_epoch();
  return decider.take();
}

std::vector<std::int64_t> awaited(const Roster& roster) {
  std::vector<std::int64_t> running;
  for (const std::int64_t member : roster.current) {
    if (roster.members.at(member).standing == Standing::running) running.push_back(member);
  }
  if (running.size() == roster.current.size() || roster.is_over()) running.clear();
  return running;
}

}  // namespace gradwire::membership
