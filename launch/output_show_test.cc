// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The block that --watch draws below the output on a terminal, as the bytes that the terminal gets.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <functional>

#include "gradwire/base/os_handles.h"
#include "launch/output.h"

namespace gradwire::launch::output_show_test {
namespace {

// What a process whose stdout and stderr are one terminal writes, with "\n" for the terminal's "\r\n".
std::string on_terminal(const std::function<void()>& body) {
  const UniqueFd terminal(::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC));
  EXPECT_EQ(::grantpt(terminal.get()), 0);
  EXPECT_EQ(::unlockpt(terminal.get()), 0);
  const std::string name = ::ptsname(terminal.get());
  const pid_t child = ::fork();
  if (child == 0) {
    const UniqueFd end(::open(name.c_str(), O_RDWR | O_NOCTTY));
    ::dup2(end.get(), STDOUT_FILENO);
    ::dup2(end.get(), STDERR_FILENO);
    ::setenv("TERM", "xterm", 1);
    body();
    ::_exit(testing::Test::HasFailure() ? 1 : 0);
  }
  std::string seen;
  std::array<char, 4096> buffer;
  for (ssize_t count = 0; (count = ::read(terminal.get(), buffer.data(), buffer.size())) > 0;)
    seen.append(buffer.data(), static_cast<std::size_t>(count));
  int status = -1;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  for (std::size_t at = 0; (at = seen.find("\r\n", at)) != std::string::npos;) seen.erase(at, 1);
  return seen;
}

// Passes what a rank writes on to the terminal.
void pump(Output& output, const UniqueFd& rank, const std::string& text) {
  static_cast<void>(::write(rank.get(), text.data(), text.size()));
  std::vector<pollfd> polled;
  output.append_interest(polled);
  ::poll(polled.data(), polled.size(), 0);
  output.handle(polled.data());
}

TEST(OutputShow, ABlockStaysBelowTheOutputAndGivesWayToTheNext) {
  const std::string seen = on_terminal([] {
    const Options options;
    Output output(options, {.bare = true});
    EXPECT_TRUE(output.can_show());
    const RankOutput rank = output.open(0);
    output.show("a\nb\n");
    pump(output, rank.out, "hello\n");
    output.say("gradwire-run: something\n");
    output.show("c\n");
    output.keep_shown();
    output.say("end\n");
  });
  const std::string up_two = "\x1b[2F\x1b[J";
  EXPECT_EQ(seen,
            "a\nb\n" + up_two + "hello\na\nb\n" + up_two + "gradwire-run: something\na\nb\n" + up_two + "c\nend\n");
}

TEST(OutputShow, AProgressLineStaysOneLineAboveTheBlock) {
  const std::string seen = on_terminal([] {
    const Options options;
    Output output(options, {.bare = true});
    const RankOutput rank = output.open(0);
    pump(output, rank.out, "10%\r");
    output.show("a\n");
    pump(output, rank.out, "20%\r");
    output.show("b\n");
  });
  // Up over the block, and once more to the line without an end.
  const std::string back = "\x1b[1F\x1b[J\x1b[1A";
  EXPECT_EQ(seen, "10%\na\n" + back + "\r\x1b[K20%\na\n" + back + "\nb\n");
}

TEST(OutputShow, WithoutWholeLinesOrATerminalThereIsNoBlock) {
  on_terminal([] {
    Options options;
    options.prefix = false;
    EXPECT_FALSE(Output(options, {}).can_show());
    ::setenv("TERM", "dumb", 1);
    EXPECT_FALSE(Output(Options(), {}).can_show());
  });
}

}  // namespace
}  // namespace gradwire::launch::output_show_test
