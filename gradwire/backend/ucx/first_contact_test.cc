// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Tests that a rank outlives a peer that dies at any moment of their first contact: UCX 1.13 ends a process by an
// assertion where it has something of its own to send just then. The survivor's socket calls are this program's own
// functions, which kill the peer before the call whose turn it is, and the sweep goes through all calls.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <iostream>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "gradwire/backend/ucx/ucx_wire_test_support.h"
#include "gradwire/base/deadline.h"
#include "gradwire/base/os_handles.h"

namespace {

struct Phase {
  pid_t peer = 0;  // 0: nothing is counted
  int kill_at = 0;
  int calls = 0;
  const char* killed_before = nullptr;
};
Phase phase;  // of the survivor, which has one thread

void count(const char* call) {
  if (phase.peer == 0 || ++phase.calls != phase.kill_at) return;
  ::kill(phase.peer, SIGKILL);
  ::waitpid(phase.peer, nullptr, 0);
  phase.killed_before = call;
}

template <class Function>
Function* original(const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

}  // namespace

extern "C" {
int connect(int fd, const sockaddr* to, socklen_t bytes) {
  count("connect");
  return original<int(int, const sockaddr*, socklen_t)>("connect")(fd, to, bytes);
}
ssize_t send(int fd, const void* data, std::size_t bytes, int flags) {
  count("send");
  return original<ssize_t(int, const void*, std::size_t, int)>("send")(fd, data, bytes, flags);
}
ssize_t sendmsg(int fd, const msghdr* message, int flags) {
  count("sendmsg");
  return original<ssize_t(int, const msghdr*, int)>("sendmsg")(fd, message, flags);
}
ssize_t recv(int fd, void* data, std::size_t bytes, int flags) {
  count("recv");
  return original<ssize_t(int, void*, std::size_t, int)>("recv")(fd, data, bytes, flags);
}
}

namespace gradwire::ucx {
namespace {

constexpr Milliseconds kSilence{2400};
constexpr messages::Frame kFrame{messages::FrameKind::message, 1, 9, 0, 0, 0};
const Token kToken = token(7);

// The survivor has rank 0, and is one process. Ranks 1 and 2 are the other one, which dies.
enum class Contact {
  at_once,  // ranks 0 and 1 are partners, and connect to each other at the same time
  late,     // rank 2 is the partner of both; rank 1 connects to rank 0 when it has something to write
};

enum class End : int { outlived, was_over, noticed_nothing, failed };

class Pipe {
 public:
  explicit Pipe(UniqueFd end) : end_(std::move(end)) {}
  void write(const std::string& text) {
    const std::size_t bytes = text.size();
    if (::write(end_.get(), &bytes, sizeof(bytes)) != sizeof(bytes)) throw std::runtime_error("write");
    if (::write(end_.get(), text.data(), bytes) != static_cast<ssize_t>(bytes)) throw std::runtime_error("write");
  }
  std::string read() {
    std::size_t bytes = 0;
    if (::read(end_.get(), &bytes, sizeof(bytes)) != sizeof(bytes)) throw std::runtime_error("read");
    std::string text(bytes, '\0');
    if (::read(end_.get(), text.data(), bytes) != static_cast<ssize_t>(bytes)) throw std::runtime_error("read");
    return text;
  }

 private:
  UniqueFd end_;
};

using Addresses = std::array<std::string, 3>;

std::unique_ptr<UcxWire> make_wire(int rank, std::unique_ptr<Worker> worker, const Addresses& addresses,
                                   Contact contact) {
  UcxWire::Options options{.rank = rank, .peers = std::vector<PeerOptions>(3), .silence = kSilence};
  for (std::size_t peer = 0; peer < 3; ++peer) options.peers[peer] = {addresses[peer], kToken, kToken};
  if (contact == Contact::at_once) options.partners = {1 - rank};
  if (contact == Contact::late) options.partners = rank == 2 ? std::vector<int>{0, 1} : std::vector<int>{2};
  return std::make_unique<UcxWire>(std::move(worker), std::move(options));
}

// Runs until it is killed.
[[noreturn]] void be_the_peer(Pipe pipe, Contact contact) {
  auto first = std::make_unique<Worker>("lo");
  auto second = std::make_unique<Worker>("lo");
  Addresses addresses{"", first->address(), second->address()};
  for (const int rank : {1, 2}) pipe.write(addresses[static_cast<std::size_t>(rank)]);
  addresses[0] = pipe.read();
  const auto one = make_wire(1, std::move(first), addresses, contact);
  const auto two = contact == Contact::late ? make_wire(2, std::move(second), addresses, contact) : nullptr;
  Keeper frames_to_one, frames_to_two;
  bool written = false;
  for (;;) {
    one->read(frames_to_one);
    if (two != nullptr) two->read(frames_to_two);
    if (!written && (two == nullptr || !frames_to_two.kept.empty())) written = one->write(0, kFrame, {});
  }
}

// Kills the peer before the call `kill_at` of the contact, and looks for what it finds of that.
End survive(Pipe pipe, Contact contact, pid_t peer, int kill_at) {
  Addresses addresses;
  for (const std::size_t rank : {1U, 2U}) addresses[rank] = pipe.read();
  auto worker = std::make_unique<Worker>("lo");
  addresses[0] = worker->address();
  pipe.write(addresses[0]);
  const int partner = contact == Contact::late ? 2 : 1;
  if (contact == Contact::at_once) phase = {.peer = peer, .kill_at = kill_at};
  const auto wire = make_wire(0, std::move(worker), addresses, contact);
  wire->watch();
  Keeper frames;
  const Deadline guard = Deadline::after(std::chrono::seconds(30));
  const auto until = [&](auto&& condition) {
    while (!condition() && !guard.expired()) wire->read(frames);
    return condition();
  };
  if (contact == Contact::late) {
    if (!until([&] { return wire->write(partner, kFrame, {}); })) return End::failed;
    phase = {.peer = peer, .kill_at = kill_at};
  }
  bool written = false;
  const auto is_over = [&] {
    if (!frames.kept.empty() && !written) written = wire->write(1, kFrame, {});
    return written && wire->idle();
  };
  until([&] { return phase.killed_before != nullptr || is_over(); });
  if (phase.killed_before == nullptr) return is_over() ? End::was_over : End::failed;
  if (!until([&] { return wire->absence(partner).has_value(); })) return End::noticed_nothing;
  for (int i = 0; i < 200; ++i) wire->read(frames);
  return End::outlived;
}

// Runs both processes. Returns the survivor's end, and in `call` before which call its peer was killed.
End run(Contact contact, int kill_at, std::string& call) {
  std::array<int, 2> said{};
  if (::pipe(said.data()) != 0) throw std::runtime_error("no pipe");
  const pid_t survivor = ::fork();
  if (survivor == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    try {
      std::array<int, 2> ends{};
      if (::socketpair(AF_UNIX, SOCK_STREAM, 0, ends.data()) != 0) ::_exit(static_cast<int>(End::failed));
      const pid_t peer = ::fork();
      if (peer == 0) {
        ::prctl(PR_SET_PDEATHSIG, SIGKILL);
        be_the_peer(Pipe(UniqueFd(ends[1])), contact);
      }
      const End end = survive(Pipe(UniqueFd(ends[0])), contact, peer, kill_at);
      const std::string name = phase.killed_before == nullptr ? "" : phase.killed_before;
      if (::write(said[1], name.data(), name.size()) < 0) ::_exit(static_cast<int>(End::failed));
      ::_exit(static_cast<int>(end));
    } catch (...) {
      ::_exit(static_cast<int>(End::failed));
    }
  }
  ::close(said[1]);
  std::array<char, 16> text{};
  const ssize_t bytes = ::read(said[0], text.data(), text.size());
  ::close(said[0]);
  call.assign(text.data(), static_cast<std::size_t>(std::max<ssize_t>(bytes, 0)));
  int status = 0;
  ::waitpid(survivor, &status, 0);
  EXPECT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status)
                                 << " ended the survivor; its peer was to die before its call " << kill_at;
  return WIFEXITED(status) ? static_cast<End>(WEXITSTATUS(status)) : End::failed;
}

class FirstContactTest : public ::testing::TestWithParam<Contact> {};
INSTANTIATE_TEST_SUITE_P(Contacts, FirstContactTest, ::testing::Values(Contact::at_once, Contact::late),
                         [](const auto& info) { return info.param == Contact::late ? "late" : "at_once"; });

TEST_P(FirstContactTest, APeerThatDiesBeforeAnyCallEndsNobodyElse) {
  std::map<std::string, int> deaths;
  for (int kill_at = 1;; ++kill_at) {
    ASSERT_LT(kill_at, 500) << "the contact is never over";
    std::string call;
    const End end = run(GetParam(), kill_at, call);
    if (end == End::was_over) break;
    ASSERT_EQ(end, End::outlived) << "the peer was to die before call " << kill_at;
    ++deaths[call];
  }
  for (const auto& [call, number] : deaths) std::cout << "deaths before " << call << "(): " << number << '\n';
  EXPECT_GT(deaths["send"] + deaths["sendmsg"], 0);
  EXPECT_GT(deaths["recv"], 0);
}

}  // namespace
}  // namespace gradwire::ucx
