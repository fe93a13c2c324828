// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Tests, over real backends, the outcome of requests that are cancelled, or whose process forks.
#include <poll.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "gradwire/base/error.h"
#include "gradwire/base/os_handles.h"
#include "gradwire/base/strings.h"
#include "tests/conformance/conformance.h"

namespace {
bool in_forked_child = false;
}  // namespace

// Asked by LeakSanitizer alone: a forked child leaves its parent's threads and locks as they are, which LeakSanitizer
// would count at its exit().
extern "C" int __lsan_is_turned_off();
extern "C" int __lsan_is_turned_off() { return in_forked_child ? 1 : 0; }

namespace gradwire::testing {
namespace {

class Requests : public ConformanceTest {};
INSTANTIATE_TEST_SUITE_P(All, Requests,
                         ::testing::Values(World{Kind::threads, 2}, World{Kind::shm, 2}, World{Kind::ucx, 2},
                                           World{Kind::mpi, 2}),
                         world_name);

class RequestsOfProcesses : public ConformanceTest {};
INSTANTIATE_TEST_SUITE_P(All, RequestsOfProcesses,
                         ::testing::Values(World{Kind::shm, 2}, World{Kind::ucx, 2}, World{Kind::mpi, 2}), world_name);

Request::Status finish(const std::shared_ptr<Request>& request) { return request->wait(Deadline::after(kGuard)); }

TEST_P(Requests, AWaitThatTimedOutHasGivenTheBufferBack) {
  run([](RankContext& context) {
    Channel& channel = context.channel();
    const Bytes sent = make_input(DType::u8, 1000, 1, 5);
    if (context.rank() == 1) {
      context.meet("timed out");
      finish(channel.isend(sent.data(), sent.size(), 0, 4));
      context.meet("received");
      return;
    }
    Bytes first(sent.size(), std::byte{0x11});
    const auto request = channel.irecv(first.data(), first.size(), 1, 4);
    expect_throw<TimeoutError>([&] { request->wait(Deadline::after(Milliseconds(20))); });
    EXPECT_TRUE(request->done());
    context.meet("timed out");
    // The request lives on, but the message is the next receive's.
    Bytes second(sent.size());
    finish(channel.irecv(second.data(), second.size(), 1, 4));
    EXPECT_EQ(difference(second.data(), sent, DType::u8), "");
    for (const std::byte b : first) ASSERT_EQ(b, std::byte{0x11}) << "written after the wait had ended";
    context.meet("received");
  });
}

TEST_P(Requests, ASendThatIsDroppedEndsTheReceiveThatItHadFound) {
  // The more messages stand before it, the further it gets: not offered, offered, accepted, under way, done.
  constexpr int kMessages = 40;
  constexpr std::size_t kEach = std::size_t{64} << 10;
  constexpr std::size_t kLarge = std::size_t{4} << 20;
  run([](RankContext& context) {
    Channel& channel = context.channel();
    for (int drop_after = 0; drop_after < 2 * kMessages; drop_after += 8) {
      SCOPED_TRACE(concat("dropped after ", drop_after, " others"));
      std::vector<Bytes> small(2 * kMessages, Bytes(kEach));
      Bytes large(kLarge);
      std::vector<std::shared_ptr<Request>> others;
      if (context.rank() == 0) {
        const auto receive = channel.irecv(large.data(), large.size(), 1, 1);
        for (Bytes& buffer : small) others.push_back(channel.irecv(buffer.data(), kEach, 1, 2));
        context.meet(concat("posted ", drop_after));
        for (const auto& other : others) finish(other);
        context.meet(concat("others ", drop_after));
        try {
          const Request::Status status = receive->wait(Deadline::after(kGuard / 3));
          // It was through, or was never sent: then this is the one behind.
          EXPECT_TRUE(status.bytes == kLarge || status.bytes == 100) << status.bytes;
          if (status.bytes == kLarge) finish(channel.irecv(large.data(), 100, 1, 1));
        } catch (const PeerError& error) {
          EXPECT_EQ(error.peers(), std::vector<int>{1}) << error.what();
          finish(channel.irecv(large.data(), 100, 1, 1));
        }
      } else {
        context.meet(concat("posted ", drop_after));
        for (int i = 0; i < kMessages; ++i) others.push_back(channel.isend(small[0].data(), kEach, 0, 2));
        auto dropped = channel.isend(large.data(), large.size(), 0, 1);
        for (int i = 0; i < kMessages; ++i) others.push_back(channel.isend(small[0].data(), kEach, 0, 2));
        if (drop_after > 0) finish(others[static_cast<std::size_t>(drop_after)]);
        dropped.reset();
        for (const auto& other : others) finish(other);
        context.meet(concat("others ", drop_after));
        finish(channel.isend(large.data(), 100, 0, 1));
      }
      context.meet(concat("round ", drop_after));
    }
  });
}

// Waits for a forked child with a guard against hanging; "" when it ended by itself and well.
std::string ending_of(pid_t child) {
  const UniqueFd process(static_cast<int>(::syscall(SYS_pidfd_open, child, 0)));
  pollfd ready{process.get(), POLLIN, 0};
  const bool ended = ::poll(&ready, 1, static_cast<int>(kGuard.count() / 2)) == 1;
  if (!ended) ::kill(child, SIGKILL);
  int status = 0;
  ::waitpid(child, &status, 0);
  if (!ended) return "it hung";
  if (WIFSIGNALED(status)) return concat("signal ", WTERMSIG(status));
  return WEXITSTATUS(status) == 0 ? "" : concat("exit code ", WEXITSTATUS(status));
}

TEST_P(RequestsOfProcesses, AForkedChildLetsGoOfWhatAThreadOfItsParentWaitsFor) {
  run([](RankContext& context) {
    Channel& channel = context.channel();
    if (context.rank() == 1) {
      context.meet("forked");
      const Bytes sent = make_input(DType::u8, 300'000, 1, 7);
      finish(channel.isend(sent.data(), sent.size(), 0, 3));
      context.meet("received");
      return;
    }
    Bytes received(300'000);
    auto request = channel.irecv(received.data(), received.size(), 1, 3);
    std::atomic<bool> began{false};
    std::thread waiter([&] {
      began = true;
      finish(request);
    });
    while (!began) std::this_thread::yield();
    std::fflush(nullptr);
    // A fork takes the thread sanitizer a second.
    constexpr int kForks = kThreadSanitizer ? 2 : 20;
    for (int forks = 0; forks < kForks; ++forks) {
      const pid_t child = ::fork();
      ASSERT_GE(child, 0);
      if (child == 0) {
        in_forked_child = true;
        // As a data loader's worker that ends by exit(): objects of this function go, and then those of the program.
        request.reset();
        context.leave();
        std::exit(0);
      }
      EXPECT_EQ(ending_of(child), "");
    }
    context.meet("forked");
    waiter.join();
    EXPECT_EQ(difference(received.data(), make_input(DType::u8, 300'000, 1, 7), DType::u8), "")
        << "a child took what was its parent's";
    context.meet("received");
  });
}

}  // namespace
}  // namespace gradwire::testing
