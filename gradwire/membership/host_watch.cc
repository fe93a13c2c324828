// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/membership/host_watch.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "gradwire/base/error.h"
#include "gradwire/base/process_identity.h"
#include "gradwire/base/strings.h"
#include "gradwire/membership/job_store.h"
#include "gradwire/membership/stored_values.h"

namespace gradwire::membership {
namespace {

std::shared_ptr<Store> checked_store(std::shared_ptr<Store> store) {
  if (store == nullptr) throw InvalidArgument("a host of an elastic job: the store is null");
  return store;
}

// Between two looks for new events, and whether the job has another store. Links between hosts may be slow.
constexpr Milliseconds kFollow{1000};
// A look takes no longer, because the same thread gives the host's signs of life: in another store a host reads all
// events of the job again.
constexpr Milliseconds kFollowAtOnce{200};

// Hosts have the numbers 1, 2, ...; the coordinator's host has none.
std::string name_of(std::int64_t number) { return std::to_string(number); }

}  // namespace

HostWatch::HostWatch(std::shared_ptr<Store> store)
    : store_(checked_store(std::move(store))),
      log_(store_),
      host_(name_of(store_->add(kHostsKey, 1))),
      store_name_(name_of_job_store(*store_)),
      next_event_(log_.noted_end() + 1) {
  beat();
}

void HostWatch::beat() { store_->add(beat_key(host_), 1); }

void HostWatch::follow() {
  next_follow_ = Deadline::after(kFollow);
  if (std::string now = name_of_job_store(*store_); now != store_name_) {
    // Events that no coordinator had read have given their numbers to others.
    store_name_ = std::move(now);
    next_event_ = 1;
    alive_.clear();
    left_.clear();
    course_ = {};
  }
  const Deadline enough = Deadline::after(kFollowAtOnce);
  has_read_all_ = false;
  while (true) {
    if (enough.expired()) {
      next_follow_ = Deadline::after(Milliseconds(0));
      return;
    }
    const std::optional<std::string> text = log_.read(next_event_, Milliseconds(0));
    if (!text) break;
    const std::int64_t number = next_event_++;
    const std::optional<Event> event = known_event_of(*text);
    if (!event) continue;  // the coordinator refuses whoever wrote it
    course_.add(number, *event);
    if (const auto* joined = std::get_if<Joined>(&*event); joined != nullptr && joined->host == host_)
      alive_[number] = joined->identity;
    const auto goes = [this](std::int64_t member) {
      if (alive_.erase(member) != 0) left_.push_back(member);
    };
    if (const auto* left = std::get_if<Left>(&*event)) goes(left->member);
    if (const auto* died = std::get_if<Died>(&*event)) goes(died->member);  // or left while it waited
    if (const auto* done = std::get_if<Done>(&*event)) alive_.erase(done->member);
  }
  has_read_all_ = true;
  look_up_drops();
}

void HostWatch::look_up_drops() {
  for (; !left_.empty(); left_.pop_back()) {
    const std::int64_t member = left_.back();
    if (why_dropped_) continue;
    const std::optional<std::string> why = value_of(*store_, dropped_key(member));
    if (why && *why != kDroppedSlow) why_dropped_ = concat("member ", member, " had to leave, because ", *why);
  }
}

void HostWatch::look_for_the_dead(bool has_news) {
  // A process that has ended may have left before, in good order.
  const bool any_ended =
      std::any_of(alive_.begin(), alive_.end(), [](const auto& member) { return !may_be_alive(member.second); });
  if (any_ended || has_news || next_follow_.expired()) follow();
  if (!has_read_all_) return;  // what was not read yet may say that a member has left
  std::erase_if(alive_, [&](const auto& member) {
    if (may_be_alive(member.second)) return false;
    log_.append(Died{member.first, concat("has ended (", describe_process(member.second), " on host ", host_, ")"),
                     gives_up_ ? host_ : ""});
    return true;
  });
}

std::optional<std::string> HostWatch::ended() { return value_of(*store_, kEndedKey); }

void HostWatch::leave() { store_->set(bye_key(host_), "1"); }

std::vector<std::string> HostBeats::silent(Store& store, const std::vector<std::string>& hosts, Milliseconds timeout) {
  const WatchedTime::Duration now = time_.look(Deadline::Clock::now(), WatchedTime::Duration(timeout) / 4);
  std::vector<std::string> silent;
  for (const std::string& host : hosts) {
    Heard& heard = heard_[host];
    const std::int64_t count = store.add(beat_key(host), 0);
    if (std::exchange(heard.count, count) != count) heard.time = now;
    if (now - heard.time > timeout) silent.push_back(host);
  }
  return silent;
}

std::size_t HostList::present(Milliseconds timeout) {
  const std::int64_t count = store_->add(kHostsKey, 0);
  std::vector<std::string> hosts;
  for (std::int64_t number = 1; number <= count; ++number) {
    const std::string host = name_of(number);
    if (!is_there(*store_, bye_key(host))) hosts.push_back(host);
  }
  for (const std::string& silent : beats_.silent(*store_, hosts, timeout)) std::erase(hosts, silent);
  std::erase_if(hosts, [&](const std::string& host) { return beats_.count(host) == 0; });  // a number that no host has
  return hosts.size();
}

}  // namespace gradwire::membership
