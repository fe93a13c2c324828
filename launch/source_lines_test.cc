// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "launch/source_lines.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <stdlib.h>

#include <chrono>
#include <filesystem>
#include <fstream>

#include "gradwire/base/environment.h"
#include "gradwire/base/strings.h"
#include "tests/support/temporary_folder.h"

namespace gradwire::launch {
namespace {

TEST(SourceLines, OfEachAddressTheInnermostLineOfTheProgramIsTaken) {
  EXPECT_EQ(lines_from_addr2line("0x01\nmain\n/home/u/train.cc:41\n0x02\n??\n??:0\n"
                                 "0x03\nns::(anonymous namespace)::step(int, char)\nloop.cc:7 (discriminator 3)\n"
                                 "0x04\nf\n??:?\n"
                                 "0x05\nForwardPass\n/usr/include/gradwire/ddp/distributed_data_parallel.h:169\n"
                                 "train(int)\n/home/u/train.cc:43\nmain\n/home/u/train.cc:50\n"
                                 "0x06\nForwardPass\n/usr/include/gradwire/ddp/distributed_data_parallel.h:169\n"),
            (std::vector<std::string>{"train.cc:41 (main)", "", "loop.cc:7 (step)", "", "train.cc:43 (train)",
                                      "distributed_data_parallel.h:169 (ForwardPass)"}));
  EXPECT_EQ(lines_from_addr2line(""), std::vector<std::string>());
}

// With a shell script as addr2line, the first in PATH.
class SourceLinesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    path_ = environment("PATH").value_or("/usr/bin:/bin");
    ::setenv("PATH", concat(folder_.string(), ":", path_).c_str(), 1);
  }
  void TearDown() override { ::setenv("PATH", path_.c_str(), 1); }
  // The arguments are: -a -i -f -C -e MODULE ADDRESS...
  void write_addr2line(const std::string& script) const {
    const std::filesystem::path file = folder_ / "addr2line";
    std::ofstream(file) << "#!/bin/sh\n" << script << "\n";
    std::filesystem::permissions(file, std::filesystem::perms::owner_all);
  }
  // A rank with calls at an offset of each of these modules.
  static std::vector<observe::RankTable> calls_of(const std::vector<std::string>& modules) {
    observe::GroupTable group;
    for (const std::string& module : modules) {
      observe::CallRow call;
      call.place.module = module;
      call.place.offset = 0x10;
      group.calls.push_back(call);
    }
    observe::RankTable table;
    table.groups.push_back(group);
    return {table};
  }
  static std::vector<std::string> lines_of(const std::vector<observe::RankTable>& tables) {
    std::vector<std::string> lines;
    for (const auto& call : tables.front().groups.front().calls) lines.push_back(call.place.line);
    return lines;
  }

 private:
  const test_support::TemporaryFolder temporary_;
  const std::filesystem::path folder_ = temporary_.path();
  std::string path_;
};

TEST_F(SourceLinesTest, AreFoundModuleByModule) {
  write_addr2line("echo $7; echo main; echo /home/$6.cc:41");
  auto tables = calls_of({"one", "two", "one", "", "/lib/libtorch_cpu.so"});
  add_source_lines(tables, Deadline::never());
  EXPECT_EQ(lines_of(tables),
            (std::vector<std::string>{"one.cc:41 (main)", "two.cc:41 (main)", "one.cc:41 (main)", "", ""}));
}

TEST_F(SourceLinesTest, ThatAreThereAtTheDeadlineAreTaken) {
  write_addr2line("echo $7; echo main; echo /home/$6.cc:41; [ $6 = one ] || exec sleep 1000");
  auto tables = calls_of({"one", "two", "zzz"});
  // Long enough for two programs to start.
  add_source_lines(tables, Deadline::after(std::chrono::seconds(3)));
  EXPECT_EQ(lines_of(tables), (std::vector<std::string>{"one.cc:41 (main)", "two.cc:41 (main)", ""}));
}

TEST_F(SourceLinesTest, NobodyWaitsForASlowProgram) {
  write_addr2line("exec sleep 1000");
  const auto before = std::chrono::steady_clock::now();
  SourceLines lookup(calls_of({"one"}), Deadline::after(std::chrono::minutes(10)));
  lookup.go_on();
  EXPECT_FALSE(lookup.has_ended());
  pollfd polled{lookup.fd(), POLLIN, 0};
  EXPECT_EQ(::poll(&polled, 1, 0), 0);
  EXPECT_EQ(lines_of(std::move(lookup).take()), std::vector<std::string>{""});
  EXPECT_LT(std::chrono::steady_clock::now() - before, std::chrono::minutes(1));
}

TEST_F(SourceLinesTest, AreNotFoundWithoutTheProgram) {
  ::setenv("PATH", "/nowhere", 1);
  SourceLines lookup(calls_of({"one", "two"}), Deadline::never());
  EXPECT_TRUE(lookup.has_ended());
  EXPECT_EQ(lookup.fd(), -1);
  EXPECT_EQ(lines_of(std::move(lookup).take()), (std::vector<std::string>{"", ""}));
}

}  // namespace
}  // namespace gradwire::launch
