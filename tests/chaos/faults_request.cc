// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Requests that end without their message: by a deadline, or because their owner gives them up.
#include <csignal>

#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "tests/chaos/messages.h"

namespace gradwire::testing {
namespace {

void send_to_all_and_wait(Member& self) {
  const Bytes sent = message(self, kEager, self.rank());
  std::vector<std::shared_ptr<Request>> sends;
  for (int to = 0; to < self.size(); ++to) {
    if (to != self.rank()) sends.push_back(self.channel().isend(sent.data(), sent.size(), to, kTag));
  }
  for (const auto& send : sends) send->wait(guard());
}

// A rank that is stopped keeps a receive waiting for as long as the receiver allows; the group takes no harm, and what
// the rank sends when it goes on comes to the next receive.
void from_a_stopped_rank(Member& self) {
  self.join();
  self.warm_up();
  if (self.is_victim()) {
    self.stage().death.stamp();
    std::raise(SIGSTOP);
    send_to_all_and_wait(self);
    return self.after_nothing();
  }
  Bytes got(kEager);
  const auto receive = [&] { return self.channel().irecv(got.data(), got.size(), self.victim(), kTag); };
  self.learn([&] { receive()->wait(Deadline::after(Milliseconds(300))); }, true);
  self.stage().told.await(static_cast<std::uint32_t>(self.survivors()));
  ::kill(self.stage().pids[static_cast<std::size_t>(self.victim())].load(), SIGCONT);
  wait_for(self, *receive(), got);
  self.after_nothing();
}

// A receive from the victim, which may have given the message up: whether the message came. Where the victim gave up
// before it had said a word of it, its next message comes instead, and the size tells.
std::size_t receive_if_not_given_up(Member& self) {
  Bytes got(kInPieces);
  const auto receive = self.channel().irecv(got.data(), got.size(), self.victim(), kTag);
  self.stage().ready.raise();
  try {
    got.resize(receive->wait(guard()).bytes);
    if (got != message(self, got.size(), self.victim())) Member::report(Complaint::wrong, "a message differs");
    return got.size();
  } catch (const PeerError& error) {
    if (error.peers() != std::vector<int>{self.victim()}) Member::report(Complaint::unnamed, error.what());
  } catch (const TimeoutError& error) {
    Member::report(Complaint::hang, concat("the cancel did not arrive: ", error.what()));
  }
  return 0;
}

// The victim gives a send up: its receiver hears of it, unless all had come, and the next message comes whole.
void cancelled_send(Member& self) {
  self.join();
  self.warm_up();
  const bool receiver_first = self.random().below(2) == 0;
  const std::size_t looks = self.random().below(400);
  const int receiver = (self.victim() + 1) % self.size();
  if (self.is_victim()) {
    const Bytes given_up = message(self, kInPieces, self.victim());
    if (receiver_first) self.stage().ready.await(1);
    auto request = self.channel().isend(given_up.data(), given_up.size(), receiver, kTag);
    for (std::size_t i = 0; i < looks && !request->done(); ++i) shared::spin_pause();
    request.reset();
    const Bytes next = message(self, kEager, self.victim());
    self.channel().isend(next.data(), next.size(), receiver, kTag)->wait(guard());
  } else if (self.rank() == receiver && receive_if_not_given_up(self) != kEager) {
    Bytes next(kEager);
    wait_for(self, *self.channel().irecv(next.data(), next.size(), self.victim(), kTag), next);
  }
  self.after_nothing();
}

// The victim gives a receive up before anything came for it: the message waits for the next receive.
void cancelled_receive(Member& self) {
  self.join();
  self.warm_up();
  const std::size_t bytes = self.random().below(2) == 0 ? kEager : kOffered;
  const int sender = (self.victim() + 1) % self.size();
  const Bytes sent = message(self, bytes, sender);
  if (self.is_victim()) {
    Bytes first(bytes);
    self.channel().irecv(first.data(), bytes, sender, kTag).reset();
    self.stage().ready.raise();
    Bytes got(bytes);
    self.channel().irecv(got.data(), bytes, sender, kTag)->wait(guard());
    if (got != sent) Member::report(Complaint::wrong, "the message differs");
    if (first != Bytes(bytes)) Member::report(Complaint::wrong, "a buffer was written after its request was dropped");
  } else if (self.rank() == sender) {
    self.stage().ready.await(1);
    self.channel().isend(sent.data(), bytes, self.victim(), kTag)->wait(guard());
  }
  self.after_nothing();
}

constexpr FaultClass kRequestFaults[] = {
    {.name = "message: stopped past the deadline", .ending = Ending::well, .weight = 2, .play = from_a_stopped_rank},
    {.name = "message: send given up", .ending = Ending::well, .weight = 3, .play = cancelled_send},
    {.name = "message: receive given up", .ending = Ending::well, .weight = 2, .play = cancelled_receive},
};

}  // namespace

std::span<const FaultClass> request_faults() { return kRequestFaults; }

}  // namespace gradwire::testing
