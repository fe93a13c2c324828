// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// A rank is killed while messages to it or from it are under way, or gives requests up.
#include <sched.h>

#include <array>
#include <csignal>

#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "tests/chaos/member.h"

namespace gradwire::testing {
namespace {

constexpr std::uint32_t kTag = 1'000'000;  // beyond those of the program
constexpr std::uint32_t kChatterTag = kTag + 1;
constexpr std::size_t kEager = 300;
constexpr std::size_t kOffered = 300'000;
constexpr std::size_t kInPieces = 24'000'000;

Bytes message(const Member& self, std::size_t bytes, int from) {
  return make_input(DType::u8, bytes, from, self.fault().detail % 1'000'000);
}

Deadline guard() { return guarded().deadline; }

// Waits for a receive from the victim: what comes well must be right.
void wait_for(Member& self, Request& receive, const Bytes& got) {
  const Request::Status status = receive.wait(guard());
  if (status.source != self.victim() || status.bytes != got.size()) {
    return Member::report(Complaint::wrong, concat("received ", status.bytes, " bytes from rank ", status.source));
  }
  const std::string where = difference(got.data(), message(self, got.size(), self.victim()), DType::u8);
  if (!where.empty()) Member::report(Complaint::wrong, "a message differs: " + where);
}

// Small messages from one survivor to the next, without a pause, until `over`: traffic must not hide a death.
class Chatter {
 public:
  explicit Chatter(Member& self) : self_(self) {
    do next_ = (next_ < 0 ? self.rank() + 1 : next_ + 1) % self.size();
    while (next_ == self.victim());
    do before_ = ((before_ < 0 ? self.rank() : before_) + self.size() - 1) % self.size();
    while (before_ == self.victim());
  }
  void go_on() {
    if (next_ == self_.rank()) return;
    Channel& channel = self_.channel();
    if (send_ == nullptr || send_->done()) send_ = channel.isend(out_.data(), out_.size(), next_, kChatterTag);
    if (receive_ == nullptr || receive_->done()) receive_ = channel.irecv(in_.data(), in_.size(), before_, kChatterTag);
  }

 private:
  Member& self_;
  int next_ = -1;
  int before_ = -1;
  std::array<char, 64> out_{};
  std::array<char, 64> in_{};
  std::shared_ptr<Request> send_;
  std::shared_ptr<Request> receive_;
};

// The victim dies before it sends; the others wait for it, some with traffic of their own.
void before_it_sends(Member& self) {
  const bool chatter = self.random().below(3) != 0;
  self.join();
  self.warm_up();
  if (self.is_victim()) {
    self.stage().ready.await(static_cast<std::uint32_t>(self.survivors()));
    self.die();
  }
  Bytes got(self.random().below(2) == 0 ? kEager : kOffered);
  self.learn([&] {
    Chatter others(self);
    const std::shared_ptr<Request> receive = self.channel().irecv(got.data(), got.size(), self.victim(), kTag);
    self.stage().ready.raise();
    while (chatter && !receive->done()) {
      others.go_on();
      ::sched_yield();
    }
    wait_for(self, *receive, got);
  });
  self.after_death();
}

// Small messages from the victim to all, and from all to the victim, when it dies.
void with_eager_messages(Member& self) {
  const std::size_t count = 1 + self.random().below(200);
  self.join();
  self.warm_up();
  const Bytes sent = message(self, kEager, self.rank());
  if (self.is_victim()) {
    std::vector<std::shared_ptr<Request>> sends;
    for (std::size_t i = 0; i < count; ++i) {
      for (int to = 0; to < self.size(); ++to) {
        if (to != self.rank()) sends.push_back(self.channel().isend(sent.data(), sent.size(), to, kTag));
      }
    }
    self.die();
  }
  self.learn([&] {
    const std::shared_ptr<Request> back = self.channel().isend(sent.data(), sent.size(), self.victim(), kTag);
    for (std::size_t i = 0; i <= count; ++i) {
      Bytes got(kEager);
      const std::shared_ptr<Request> receive = self.channel().irecv(got.data(), got.size(), self.victim(), kTag);
      wait_for(self, *receive, got);
    }
  });
  self.after_death();
}

// A large message is offered, nobody takes it, and its sender dies; or the one it is for.
void with_an_offer(Member& self) {
  const bool victim_sends = self.random().below(2) == 0;
  self.join();
  self.warm_up();
  const Bytes sent = message(self, kOffered, self.rank());
  if (self.is_victim()) {
    std::vector<std::shared_ptr<Request>> sends;
    for (int to = 0; victim_sends && to < self.size(); ++to) {
      if (to != self.rank()) sends.push_back(self.channel().isend(sent.data(), sent.size(), to, kTag));
    }
    self.stage().done.raise();
    self.stage().ready.await(static_cast<std::uint32_t>(self.survivors()));
    self.die();
  }
  self.learn([&] {
    self.stage().done.await(1);
    if (!victim_sends) {
      const auto send = self.channel().isend(sent.data(), sent.size(), self.victim(), kTag);
      self.stage().ready.raise();
      send->wait(guard());
      return Member::report(Complaint::wrong, "a large message was taken by nobody and went well");
    }
    self.stage().ready.raise();
    Bytes got(kOffered);
    const auto receive = self.channel().irecv(got.data(), got.size(), self.victim(), kTag);
    wait_for(self, *receive, got);
    self.channel().barrier(guarded());  // the whole message had come
  });
  self.after_death();
}

void spin_until_something_came(const Bytes& buffer, Request& request) {
  const volatile std::byte* const first = buffer.data();
  while (*first == std::byte{0} && !request.done()) {
  }
}

// The first piece of a long message has come when its sender dies, or the one it is for.
void in_the_pieces(Member& self) {
  const bool victim_sends = self.random().below(2) == 0;
  self.join();
  self.warm_up();
  Bytes sent = message(self, kInPieces, self.rank());
  sent[0] = std::byte{1};
  Bytes got(kInPieces);
  const int partner = (self.victim() + 1) % self.size();
  if (self.is_victim()) {
    std::shared_ptr<Request> request;
    if (victim_sends) {
      request = self.channel().isend(sent.data(), sent.size(), partner, kTag);
      self.stage().ready.await(1);
    } else {
      request = self.channel().irecv(got.data(), got.size(), partner, kTag);
      spin_until_something_came(got, *request);
    }
    self.die();
  }
  self.learn([&] {
    if (self.rank() == partner && victim_sends) {
      const auto receive = self.channel().irecv(got.data(), got.size(), self.victim(), kTag);
      spin_until_something_came(got, *receive);
      self.stage().ready.raise();
      receive->wait(guard());
      Bytes expected = message(self, kInPieces, self.victim());
      expected[0] = std::byte{1};
      if (got != expected) Member::report(Complaint::wrong, "a long message came to its end and differs");
    } else if (self.rank() == partner) {
      self.channel().isend(sent.data(), sent.size(), self.victim(), kTag)->wait(guard());
    }
    self.channel().barrier(guarded());
  });
  self.after_death();
}

// Receives from any source: what others sent comes, and what only the dead rank could send ends with the group.
void from_any_source(Member& self) {
  self.join();
  self.warm_up();
  const int root = (self.victim() + 1) % self.size();
  if (self.is_victim()) {
    self.stage().ready.await(1);
    self.die();
  }
  const Bytes sent = message(self, kEager, self.rank());
  self.learn([&] {
    if (self.rank() != root) {
      self.channel().isend(sent.data(), sent.size(), root, kTag)->wait(guard());
      return self.channel().barrier(guarded());
    }
    std::vector<Bytes> got(static_cast<std::size_t>(self.size() - 1), Bytes(kEager));
    std::vector<std::shared_ptr<Request>> receives;
    for (Bytes& buffer : got) receives.push_back(self.channel().irecv(buffer.data(), kEager, kAnySource, kTag));
    for (std::size_t i = 0; i + 1 < receives.size(); ++i) {
      const int source = receives[i]->wait(guard()).source;
      if (got[i] != message(self, kEager, source)) Member::report(Complaint::wrong, "a message differs");
    }
    self.stage().ready.raise();
    if (self.size() > 2) self.channel().barrier(guarded());  // others may send for as long as they live
    receives.back()->wait(guard());
  });
  self.after_death();
}

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

constexpr FaultClass kClasses[] = {
    {.name = "message: killed before it sends", .ending = Ending::killed, .weight = 6, .play = before_it_sends},
    {.name = "message: killed among small ones", .ending = Ending::killed, .weight = 4, .play = with_eager_messages},
    {.name = "message: killed with an open offer", .ending = Ending::killed, .weight = 4, .play = with_an_offer},
    {.name = "message: killed in the pieces", .ending = Ending::killed, .weight = 4, .play = in_the_pieces},
    {.name = "message: killed before any-source", .ending = Ending::killed, .weight = 3, .play = from_any_source},
    {.name = "message: stopped past the deadline", .ending = Ending::well, .weight = 2, .play = from_a_stopped_rank},
    {.name = "message: send given up", .ending = Ending::well, .weight = 3, .play = cancelled_send},
    {.name = "message: receive given up", .ending = Ending::well, .weight = 2, .play = cancelled_receive},
};

}  // namespace

std::span<const FaultClass> message_faults() { return kClasses; }

}  // namespace gradwire::testing
