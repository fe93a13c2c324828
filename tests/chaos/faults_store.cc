// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Killed while it uses the store, or serves it.
#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "gradwire/store/tcp_store.h"
#include "tests/chaos/member.h"
#include "tests/chaos/trigger.h"

namespace gradwire::testing {
namespace {

constexpr int kUses = 60;

// A value that tells whether it is whole.
std::string value_of(int number) {
  const std::string unit = concat(number, ",");
  std::string value;
  while (value.size() < 300 * static_cast<std::size_t>(number % 40 + 1)) value += unit;
  return value;
}

bool is_whole(const std::string& value) {
  return value.empty() || value == value_of(std::stoi(value.substr(0, value.find(','))));
}

// One use after the other; `number` says in shared memory how many are through.
void use_store(Member& self, int number) {
  Store& store = self.context().store();
  const std::string own = concat("of/", self.rank());
  self.stage().calls[static_cast<std::size_t>(self.rank())].store(number);
  store.set(own, value_of(number));
  store.add(own + "/count", 1);
  store.append("log", "x");
  store.queue_push("queue", value_of(number));
  if (!is_whole(store.queue_pop("queue"))) Member::report(Complaint::wrong, "an element of a queue is torn");
}

// The victim is killed in the middle of a change. What it was at has happened or has not; the others are not held up.
void a_client(Member& self) {
  self.stage().doing[static_cast<std::size_t>(self.rank())].store("uses of the store");
  if (self.is_victim()) {
    const int before = static_cast<int>(self.random().below(kUses / 2));
    for (int i = 1; i <= before; ++i) use_store(self, i);
    const std::chrono::nanoseconds from_now(self.random().below(2'000'000));
    self.stage().death.stamp_in(from_now);
    kill_this_process_after(from_now);
    for (int i = before + 1;; ++i) use_store(self, i);
  }
  for (int i = 1; i <= kUses; ++i) use_store(self, i);
  Store& store = self.context().store();
  const std::string own = concat("of/", self.rank());
  if (store.get(own) != value_of(kUses)) Member::report(Complaint::wrong, "a value differs from what was set");
  if (store.add(own + "/count", 0) != kUses) Member::report(Complaint::wrong, "a count differs");
  self.stage().told.raise();
  self.stage().told.await(static_cast<std::uint32_t>(self.survivors()));
  const std::string dead = concat("of/", self.victim());
  // The victim may still be on its way to its end; what it wrote must be whole at any time.
  const auto begun = static_cast<std::int64_t>(self.stage().calls[static_cast<std::size_t>(self.victim())].load());
  const std::vector<std::string> key{dead};
  if (store.check(key) && !is_whole(store.get(dead))) Member::report(Complaint::wrong, "a dead rank's value is torn");
  if (self.fault().new_world) {
    const std::int64_t count = store.add(dead + "/count", 0);
    if (count < begun - 1) Member::report(Complaint::wrong, concat("a dead rank's count is ", count, " of ", begun));
  }
}

// The process that serves the store is killed: all calls end at once, and say which store is gone.
void the_server(Member& self) {
  Stage& stage = self.stage();
  if (self.is_victim()) {
    TcpStoreOptions options;
    options.is_server = true;
    TcpStore server(options);
    stage.number.store(server.port());
    stage.done.raise();
    stage.ready.await(static_cast<std::uint32_t>(self.survivors()));
    self.die();
  }
  stage.done.await(1);
  TcpStoreOptions options;
  options.port = static_cast<std::uint16_t>(stage.number.load());
  options.timeout = kGuard;
  TcpStore store(options);
  store.set(concat("rank ", self.rank()), "here");
  const bool waits = self.random().below(2) == 0;
  stage.ready.raise();
  try {
    if (waits) store.get("what nobody sets");
    for (;;) store.add("count", 1);
  } catch (const StoreError& error) {
    ChildProcess::note(concat("known ", stage.death.milliseconds_since()));
    if (std::string(error.what()).find(std::to_string(options.port)) == std::string::npos) {
      Member::report(Complaint::unnamed, error.what());
    }
  } catch (const Error& error) {
    Member::report(Complaint::wrong, describe(error));
  }
}

constexpr FaultClass kStoreFaults[] = {
    {.name = "store: a client is killed", .ending = Ending::killed, .weight = 6, .play = a_client},
    {.name = "store: the server is killed", .ending = Ending::killed, .weight = 3, .play = the_server},
};

}  // namespace

std::span<const FaultClass> store_faults() { return kStoreFaults; }

}  // namespace gradwire::testing
