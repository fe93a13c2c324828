// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Tests that OutputSink never blocks, loses nothing, and survives a reader that closes the pipe.
#include "launch/output_sink.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
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
