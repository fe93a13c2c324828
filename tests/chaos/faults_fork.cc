// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Ranks fork: children that end, are killed, let go of what they inherited, or outlive their parent.
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <thread>

#include "gradwire/base/error.h"
#include "gradwire/base/process.h"
#include "gradwire/base/strings.h"
#include "tests/chaos/messages.h"
#include "tests/chaos/trigger.h"
#include "tests/conformance/child_process.h"

namespace gradwire::testing {
namespace {

// A forked child is killed; its parent's group takes no notice.
void child_is_killed(Member& self) {
  self.join();
  self.warm_up();
  const std::size_t after = self.random().below(3);
  if (self.is_victim()) {
    const pid_t parent = ::getpid();
    const pid_t child = ::fork();
    if (child == 0) {
      end_with_parent(parent);
      for (;;) ::pause();
    }
    self.make_calls(static_cast<int>(after));
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
  } else {
    self.make_calls(static_cast<int>(after));
  }
  self.after_nothing();
}

// A forked child lets go of all it inherited, as a program does at its end: request, group and store, while a thread of
// the parent waits for a message.
void child_lets_go(Member& self) {
  self.join();
  self.warm_up();
  const bool thread_waits = self.random().below(2) == 0;
  if (self.is_victim()) {
    const int sender = (self.victim() + 1) % self.size();
    char byte = 0;
    std::shared_ptr<Request> receive = self.channel().irecv(&byte, 1, sender, kTag);
    Thread waiter;
    Counter begun;
    if (thread_waits) {
      waiter = Thread("waiter", [&begun, request = receive.get()] {
        begun.raise();
        request->wait(guard());
      });
      begun.await(1);
    }
    const bool ended = run_forked([&] {
      expect_refused_in_child(self.channel());
      receive.reset();
      self.let_go_in_child();
    });
    if (!ended) Member::report(Complaint::hang, "a forked child that lets go of its parent's group");
    self.stage().ready.raise();
    receive->wait(guard());
    if (thread_waits) waiter.join();
    if (byte != 'x') Member::report(Complaint::wrong, "a message differs");
  } else if (self.rank() == (self.victim() + 1) % self.size()) {
    self.stage().ready.await(1);
    self.channel().isend("x", 1, self.victim(), kTag)->wait(guard());
  }
  self.after_nothing();
}

// A rank is killed whose forked child lives on, with copies of all its descriptors and mappings.
void child_outlives(Member& self) {
  self.join();
  self.warm_up();
  if (self.is_victim()) {
    const pid_t child = ::fork();
    if (child == 0) {
      self.stage().done.await(static_cast<std::uint32_t>(self.survivors()));
      ::_exit(0);
    }
    self.stage().orphan.store(child);
    if (self.random().below(2) == 0) self.die();
    self.stage().death.stamp_in(std::chrono::nanoseconds(200'000));
    kill_this_process_after(std::chrono::nanoseconds(200'000));
    self.make_calls_for_ever();
  }
  self.learn([&] { self.make_calls_for_ever(); });
  self.after_death();
  self.stage().done.raise();
}

constexpr FaultClass kForkFaults[] = {
    {.name = "fork: the child is killed", .ending = Ending::well, .weight = 3, .play = child_is_killed},
    {.name = "fork: the child lets go", .ending = Ending::well, .weight = 4, .play = child_lets_go},
    {.name = "fork: the child outlives its rank", .ending = Ending::killed, .weight = 3, .play = child_outlives},
};

}  // namespace

std::span<const FaultClass> fork_faults() { return kForkFaults; }

}  // namespace gradwire::testing
