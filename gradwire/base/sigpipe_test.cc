// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Proves: a write to a closed connection ends nobody, on this thread and on those it starts; the program's own handling
// of SIGPIPE is as before afterwards.
#include "gradwire/base/sigpipe.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <thread>

#include "gradwire/base/os_handles.h"

namespace gradwire::sigpipe_test {
namespace {

volatile std::sig_atomic_t handled = 0;

// A pipe that nobody reads.
UniqueFd closed_pipe() {
  std::array<int, 2> ends{};
  EXPECT_EQ(::pipe(ends.data()), 0);
  ::close(ends[0]);
  return UniqueFd(ends[1]);
}

void write_to(const UniqueFd& pipe) {
  EXPECT_EQ(::write(pipe.get(), "x", 1), -1);
  EXPECT_EQ(errno, EPIPE);
}

class Sigpipe : public ::testing::Test {
 protected:
  void SetUp() override {
    handled = 0;
    before_ = std::signal(SIGPIPE, [](int) { handled = handled + 1; });
  }
  void TearDown() override { std::signal(SIGPIPE, before_); }

 private:
  void (*before_)(int) = SIG_DFL;
};

TEST_F(Sigpipe, AWriteToAClosedConnectionRaisesNothing) {
  const UniqueFd pipe = closed_pipe();
  {
    const NoSigpipe quiet;
    write_to(pipe);
    const NoSigpipe nested;
    write_to(pipe);
  }
  EXPECT_EQ(handled, 0);
  write_to(pipe);
  EXPECT_EQ(handled, 1) << "the program's own handler is back";
}

TEST_F(Sigpipe, ThreadsThatAreStartedMeanwhileStayQuiet) {
  const UniqueFd pipe = closed_pipe();
  std::thread writer;
  {
    const NoSigpipe quiet;
    writer = std::thread([&] { write_to(pipe); });
  }
  writer.join();
  EXPECT_EQ(handled, 0);
}

TEST_F(Sigpipe, ASignalThatWasPendingBeforeStaysPending) {
  const UniqueFd pipe = closed_pipe();
  sigset_t set;
  sigset_t before;
  ::sigemptyset(&set);
  ::sigaddset(&set, SIGPIPE);
  ::pthread_sigmask(SIG_BLOCK, &set, &before);
  ::raise(SIGPIPE);
  {
    const NoSigpipe quiet;
    write_to(pipe);
  }
  EXPECT_EQ(handled, 0);
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  EXPECT_EQ(handled, 1);
}

}  // namespace
}  // namespace gradwire::sigpipe_test
