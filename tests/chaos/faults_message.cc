// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// A rank is killed while messages to it or from it are under way.
#include <sched.h>

#include <array>

#include "gradwire/base/error.h"
#include "tests/chaos/messages.h"

namespace gradwire::testing {
namespace {

constexpr std::uint32_t kChatterTag = kTag + 1;

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

constexpr FaultClass kMessageFaults[] = {
    {.name = "message: killed before it sends", .ending = Ending::killed, .weight = 6, .play = before_it_sends},
    {.name = "message: killed among small ones", .ending = Ending::killed, .weight = 4, .play = with_eager_messages},
    {.name = "message: killed with an open offer", .ending = Ending::killed, .weight = 4, .play = with_an_offer},
    {.name = "message: killed in the pieces", .ending = Ending::killed, .weight = 4, .play = in_the_pieces},
    {.name = "message: killed before any-source", .ending = Ending::killed, .weight = 3, .play = from_any_source},
};

}  // namespace

std::span<const FaultClass> message_faults() { return kMessageFaults; }

}  // namespace gradwire::testing
