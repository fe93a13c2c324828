// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Tests the command that starts a launcher on another host.
#include "launch/remote_command.h"

#include <gtest/gtest.h>

#include <cstdio>

namespace gradwire::launch {
namespace {

using Words = std::vector<std::string>;

TEST(RemoteCommand, FillsInHostAndLine) {
  EXPECT_EQ(remote_command("ssh -p 22 {host} {command}", "b", "/w", {"run", "-n", "2"}),
            (Words{"ssh", "-p", "22", "b", "cd '/w' && exec 'run' '-n' '2'"}));
  EXPECT_EQ(remote_command("ssh", "b", "/w", {"run"}), (Words{"ssh", "b", "cd '/w' && exec 'run'"}));
  EXPECT_EQ(remote_command("nsenter --net=/ns/{host} sh -c {command}", "b", "/", {"{host}"}),
            (Words{"nsenter", "--net=/ns/b", "sh", "-c", "cd '/' && exec '{host}'"}));
}

TEST(RemoteCommand, AShellTakesQuotedWordsAsTheyAre) {
  const std::string word = "a 'b' \"c\" $HOME `d` \\ *\n;&|";
  FILE* shell = ::popen(("printf %s " + quote_for_shell(word)).c_str(), "r");
  ASSERT_NE(shell, nullptr);
  std::string said(100, '\0');
  said.resize(std::fread(said.data(), 1, said.size(), shell));
  EXPECT_EQ(::pclose(shell), 0);
  EXPECT_EQ(said, word);
}

}  // namespace
}  // namespace gradwire::launch
