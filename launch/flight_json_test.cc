// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Tables survive the way through JSON lines and folders, damaged files are refused with their place, and the output of
// addr2line is read.
#include "launch/flight_json.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>
#include <utility>

#include "gradwire/base/os_handles.h"
#include "gradwire/base/process.h"
#include "gradwire/base/strings.h"
#include "launch/launch_error.h"
#include "launch/process_look.h"
#include "tests/support/temporary_folder.h"

namespace gradwire::launch {
namespace {

using observe::CallKind;
using observe::CallRow;
using observe::Outcome;
using observe::RankTable;

// The tables of a folder in which every file is whole.
std::vector<RankTable> read_whole(const std::string& folder) {
  std::vector<std::string> left_out;
  std::vector<RankTable> tables = read_flight_folder(folder, left_out);
  EXPECT_TRUE(left_out.empty()) << left_out.front();
  return tables;
}

// Every field has a value of its own.
RankTable full_table(int rank) {
  RankTable table;
  table.rank = rank;
  table.world = 12;
  table.run = "run-7";
  table.pid = 77;
  table.started = 90;
  table.wall_offset = -5;
  table.lost_calls = 6;
  table.lost_groups = 7;
  table.process = {true, 'D', 0.25, "read", true, true, 9, 1, true, true, {"one", "two \"quoted\""}};
  observe::GroupTable group{"default.dup1", "shm", "a name", 1, 3, true, 8, {}};
  CallRow row;
  row.ticket = 5;
  row.sequence = 4;
  row.refused = 3;
  row.kind = CallKind::reduce;
  row.dtype = 1;
  row.root = 2;
  row.count = 1ULL << 40;
  row.bytes = 12;
  row.tag = std::uint64_t{3} << 32 | 2 << 16 | 1 << 8 | 9;
  row.message_tag = 11;
  row.called = 100;
  row.started = 101;
  row.ended = 102;
  row.outcome = Outcome::timeout;
  row.peers = ~std::uint64_t{0};
  row.thread = 78;
  row.place = {"/bin/train", 0x1234, "main", "train.cc:3 (main)"};
  row.waited = observe::Waited::yes;
  row.wait_place.line = "train.cc:4 (main)";
  group.calls = {row, CallRow{}};
  table.groups = {group, {"other", "gloo", "", 0, 2, false, 0, {}}};
  table.notes = {{observe::NoteKind::hook_failed, 99, "a\nb"}};
  return table;
}

void expect_same(const RankTable& a, const RankTable& b) {
  EXPECT_EQ(flight_lines(a), flight_lines(b));
  EXPECT_EQ(a.run, b.run);
  EXPECT_EQ(a.started, b.started);
  ASSERT_EQ(a.groups.size(), b.groups.size());
  const CallRow& left = a.groups[0].calls.at(0);
  const CallRow& right = b.groups[0].calls.at(0);
  EXPECT_EQ(left.kind, right.kind);
  EXPECT_EQ(left.refused, right.refused);
  EXPECT_EQ(left.dtype, right.dtype);
  EXPECT_EQ(left.tag, right.tag);
  EXPECT_EQ(left.message_tag, right.message_tag);
  EXPECT_EQ(left.count, right.count);
  EXPECT_EQ(left.outcome, right.outcome);
  EXPECT_EQ(left.peers, right.peers);
  EXPECT_EQ(left.place.offset, right.place.offset);
  EXPECT_EQ(left.waited, right.waited);
  EXPECT_EQ(left.wait_place.line, right.wait_place.line);
  EXPECT_EQ(a.groups[0].calls.at(1).dtype, 255) << "no dtype stays no dtype";
  EXPECT_EQ(a.process.last_lines, b.process.last_lines);
  EXPECT_EQ(a.notes.at(0).text, b.notes.at(0).text);
}

TEST(FlightJson, ATableSurvivesTheWayThroughLines) {
  expect_same(read_flight_lines(flight_lines(full_table(2)), "here"), full_table(2));
  EXPECT_EQ(flight_lines(read_flight_lines(flight_lines(RankTable{}), "here")), flight_lines(RankTable{}));
}

TEST(FlightJson, ACallOfAnEarlierFileHasNoTag) {
  std::string lines = flight_lines(full_table(2));
  for (const char* field : {"\"message_tag\":11,", "\"message_tag\":-1,"}) {
    const std::size_t begin = lines.find(field);
    ASSERT_NE(begin, std::string::npos) << field;
    lines.erase(begin, std::string_view(field).size());
  }
  EXPECT_EQ(read_flight_lines(lines, "here").groups[0].calls.at(0).message_tag, -1);
}

TEST(FlightJson, ADiagnosisHasItsLikelyCause) {
  const observe::Diagnosis found{.fault = observe::FaultClass::deadlock, .likely_cause = "one sent \"so\""};
  EXPECT_NE(diagnosis_line(found).find(R"("likely_cause":"one sent \"so\"")"), std::string::npos)
      << diagnosis_line(found);
}

TEST(FlightJson, BytesThatAreNoTextAreReplaced) {
  RankTable table = full_table(0);
  table.groups[0].name = "caf\xe9";
  EXPECT_EQ(read_flight_lines(flight_lines(table), "here").groups.size(), 2U);
}

TEST(FlightJson, DamagedLinesAreRefusedWithTheirPlace) {
  const std::string good = flight_lines(full_table(1));
  for (const std::string& text : {std::string(), std::string("{}\n"), std::string("hello\n"),
                                  good.substr(0, good.size() / 2), good.substr(good.find('\n') + 1)}) {
    try {
      read_flight_lines(text, "file.jsonl");
      ADD_FAILURE() << text;
    } catch (const LaunchError& error) {
      EXPECT_NE(std::string(error.what()).find("file.jsonl"), std::string::npos) << error.what();
    }
  }
}

TEST(FlightJson, RanksThatTheLastJobDidNotHaveAreLeftOut) {
  const test_support::TemporaryFolder temporary;
  const std::string& folder = temporary.path();
  const auto tables_of_job = [](int world, const std::string& run) {
    std::vector<RankTable> tables;
    for (int rank = 0; rank < world; ++rank) {
      tables.push_back(full_table(rank));
      tables.back().world = world;
      tables.back().run = run;
    }
    return tables;
  };
  write_flight_folder(folder, tables_of_job(4, "one"));
  for (int rank = 0; rank < 4; ++rank) {
    const std::string file = concat(folder, "/rank-", rank, ".jsonl");
    std::filesystem::last_write_time(file, std::filesystem::last_write_time(file) - std::chrono::hours(1));
  }
  EXPECT_EQ(read_whole(folder).size(), 4U);
  for (const char* other : {"other", ""}) {
    write_flight_folder(folder, tables_of_job(2, other));
    EXPECT_EQ(read_whole(folder).size(), 2U) << other;
  }
  // The launcher that began an elastic job knows nothing of the ranks that another one has brought.
  write_flight_folder(folder, tables_of_job(2, "one"));
  EXPECT_EQ(read_whole(folder).size(), 4U);
}

TEST(FlightJson, DamagedFilesAreLeftOut) {
  const test_support::TemporaryFolder temporary;
  const std::string& folder = temporary.path();
  write_flight_folder(folder, {full_table(0), full_table(1), full_table(2)});
  const std::string whole = flight_lines(full_table(1));
  std::ofstream(folder + "/rank-1.jsonl") << whole.substr(0, whole.size() - 20);
  std::ofstream(folder + "/rank-2.jsonl").close();
  std::vector<std::string> left_out;
  const auto tables = read_flight_folder(folder, left_out);
  ASSERT_EQ(tables.size(), 1U);
  expect_same(tables[0], full_table(0));
  std::sort(left_out.begin(), left_out.end());
  ASSERT_EQ(left_out.size(), 2U);
  EXPECT_NE(left_out[0].find("rank-1.jsonl, line "), std::string::npos) << left_out[0];
  EXPECT_NE(left_out[0].find("cut off"), std::string::npos) << left_out[0];
  EXPECT_NE(left_out[1].find("rank-2.jsonl is empty"), std::string::npos) << left_out[1];
  std::filesystem::remove(folder + "/rank-0.jsonl");
  EXPECT_THROW(read_whole(folder), LaunchError);
}

TEST(FlightJson, AFolderHoldsOneFileForEachRank) {
  const test_support::TemporaryFolder temporary;
  const std::string& folder = temporary.path();
  EXPECT_THROW(read_whole(folder), LaunchError) << "empty";
  EXPECT_THROW(read_whole(folder + "/nowhere"), LaunchError);
  write_flight_folder(folder + "/new", {full_table(10), full_table(2)});
  write_flight_folder(folder + "/new", {full_table(2)}, {full_table(2)});
  std::ofstream(folder + "/new/notes.txt") << "a file of the user";
  const auto tables = read_whole(folder + "/new");
  ASSERT_EQ(tables.size(), 2U);
  EXPECT_EQ(tables[0].rank, 2);
  expect_same(tables[1], full_table(10));
  std::ifstream file(folder + "/new/earlier-rank-2-pid-77.jsonl", std::ios::binary);
  const std::string earlier{std::istreambuf_iterator<char>(file), {}};
  expect_same(read_flight_lines(earlier, "here"), full_table(2));
}

TEST(ProcessLook, AFileThatFailsInTheMiddleOfAReadIsEmpty) {
  EXPECT_EQ(read_proc_file("/proc/self/mem"), "") << "nothing is mapped at its beginning";
  EXPECT_EQ(read_proc_file("/proc/self/no-such-file"), "");
  EXPECT_NE(read_proc_file("/proc/self/maps").find("[stack]"), std::string::npos);
}

// Whether a thread of the process waits in read().
bool reads(pid_t process) {
  std::error_code error;
  for (const auto& thread : std::filesystem::directory_iterator(concat("/proc/", process, "/task"), error)) {
    if (read_proc_file(thread.path() / "syscall").starts_with(concat(SYS_read, " "))) return true;
  }
  return false;
}

// The main thread of a child waits for a lane, and the lane for data that never come.
TEST(ProcessLook, ALaneThatWaitsForDataTellsWhereTheProcessWaits) {
  for (const auto& [name, call] : {std::pair("gw-lane-1", "read"), std::pair("loader", "futex")}) {
    int pipe[2];
    ASSERT_EQ(::pipe(pipe), 0);
    const UniqueFd to_read(pipe[0]), to_write(pipe[1]);
    const pid_t child = ::fork();
    if (child == 0) {
      const Thread lane(name, [&] {
        char byte = 0;
        static_cast<void>(::read(to_read.get(), &byte, 1));
      });
      std::atomic<int> never{0};
      never.wait(0);
    }
    std::string seen;
    // Until both threads are where they wait.
    for (const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
         seen != call && std::chrono::steady_clock::now() < end; std::this_thread::yield()) {
      if (reads(child)) seen = look_at(child).value_or(ProcessLook{}).system_call;
    }
    EXPECT_EQ(seen, call) << name;
    ::kill(child, SIGKILL);
    EXPECT_EQ(::waitpid(child, nullptr, 0), child);
  }
}

TEST(ProcessLook, SeesItsOwnProcessRunAndNoOther) {
  const auto look = look_at(::getpid());
  ASSERT_TRUE(look.has_value());
  EXPECT_EQ(look->state, 'R');
  EXPECT_FALSE(look_at(-1).has_value());
  EXPECT_FALSE(look_at(1 << 30).has_value());
  ProcessLook later = *look;
  later.time += 2'000'000'000;
  later.processor_seconds += 1;
  observe::ProcessView view;
  add_look(view, later, look);
  EXPECT_TRUE(view.seen);
  EXPECT_DOUBLE_EQ(view.busy, 0.5);
  // A thread that runs in one look only has been woken for a moment.
  later.state = 'S';
  later.running = {1, 2};
  for (const auto& [threads, state] : {std::pair(std::set<long>{3}, 'S'), std::pair(std::set<long>{2, 3}, 'R')}) {
    ProcessLook before = *look;
    before.running = threads;
    add_look(view, later, before);
    EXPECT_EQ(view.state, state);
  }
}

// A rank that was replaced, or whose process was not known at the look before.
TEST(ProcessLook, ALookAtAnotherProcessDoesNotTellHowBusyAProcessWas) {
  auto before = look_at(::getppid());
  auto now = look_at(::getpid());
  ASSERT_TRUE(before && now);
  now->time = before->time + 1'000'000'000;
  now->processor_seconds = before->processor_seconds + 100;
  now->state = 'S';
  now->running = before->running = {1};
  observe::ProcessView view;
  add_look(view, *now, before);
  EXPECT_TRUE(view.seen);
  EXPECT_EQ(view.busy, 0);
  EXPECT_EQ(view.state, 'S');
}

}  // namespace
}  // namespace gradwire::launch
