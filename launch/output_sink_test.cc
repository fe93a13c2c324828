// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Tests that OutputSink never blocks, loses nothing, and survives a reader that closes the pipe.
#include "launch/output_sink.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <array>

#include "gradwire/base/os_handles.h"

namespace gradwire::launch {
namespace {

struct Pipe {
  UniqueFd reader;
  UniqueFd writer;
  Pipe() {
    int ends[2];
    EXPECT_EQ(::pipe(ends), 0);
    reader = UniqueFd(ends[0]);
    writer = UniqueFd(ends[1]);
    EXPECT_EQ(::fcntl(reader.get(), F_SETFL, O_NONBLOCK), 0);
  }
  std::string read_all() const {
    std::string text;
    std::array<char, 4096> buffer;
    ssize_t count = 0;
    while ((count = ::read(reader.get(), buffer.data(), buffer.size())) > 0) text.append(buffer.data(), count);
    return text;
  }
};

TEST(OutputSink, KeepsWhatTheReaderDoesNotTakeYet) {
  const Pipe pipe;
  OutputSink sink(pipe.writer.get());
  std::string all;
  for (int i = 0; i < 300000; ++i) all += std::to_string(i) + "\n";
  sink.append(all);
  sink.flush_some();  // would block here, were the pipe's size not respected
  EXPECT_FALSE(sink.empty());
  std::string received;
  while (!sink.empty()) {
    received += pipe.read_all();
    sink.flush_some();
  }
  EXPECT_TRUE(received + pipe.read_all() == all);
}

// A frozen ssh session, or a stopped tmux.
TEST(OutputSink, ATerminalThatNobodyReadsDoesNotBlock) {
  const UniqueFd front(::posix_openpt(O_RDWR | O_NOCTTY | O_NONBLOCK));
  ASSERT_TRUE(front);
  ASSERT_EQ(::grantpt(front.get()), 0);
  ASSERT_EQ(::unlockpt(front.get()), 0);
  const UniqueFd terminal(::open(::ptsname(front.get()), O_RDWR | O_NOCTTY));
  ASSERT_TRUE(terminal);
  OutputSink sink(terminal.get());
  EXPECT_TRUE(sink.is_terminal());
  sink.append(std::string(1 << 20, 'x'));
  sink.flush_some();  // would block here
  EXPECT_FALSE(sink.empty());
  std::array<char, 65536> buffer;
  std::size_t received = 0;
  while (!sink.empty() || received < (1 << 20)) {
    const ssize_t count = ::read(front.get(), buffer.data(), buffer.size());
    if (count > 0) received += static_cast<std::size_t>(count);
    sink.flush_some();
  }
  EXPECT_EQ(received, std::size_t{1} << 20);
}

TEST(OutputSink, SaysWhenTooMuchIsWaiting) {
  const Pipe pipe;
  OutputSink sink(pipe.writer.get());
  EXPECT_EQ(sink.interest().fd, -1);
  sink.append(std::string(8 << 20, 'x'));
  EXPECT_TRUE(sink.congested());
  EXPECT_EQ(sink.interest().fd, pipe.writer.get());
  sink.flush_some();
  EXPECT_TRUE(sink.congested());
}

TEST(OutputSink, DropsWhatNobodyWillRead) {
  ::signal(SIGPIPE, SIG_IGN);
  Pipe pipe;
  OutputSink sink(pipe.writer.get());
  pipe.reader.reset();
  sink.append("lost");
  sink.flush_some();
  EXPECT_TRUE(sink.empty());
  sink.append("lost too");
  EXPECT_TRUE(sink.empty());
}

}  // namespace
}  // namespace gradwire::launch
