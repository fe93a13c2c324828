// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The flight recorder of a process, as another process reads it: while the process runs, after its end, and after
// kill -9 at any moment. Each test records in a forked child, because a process has one recorder.
#include "gradwire/observe/flight_recorder.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gradwire/base/error.h"
#include "gradwire/base/os_handles.h"
#include "gradwire/base/strings.h"
#include "gradwire/observe/flight_format_internal.h"
#include "gradwire/observe/flight_memory_internal.h"
#include "gradwire/observe/flight_table.h"
#include "gradwire/observe/told_ranks.h"
#include "tests/support/temporary_folder.h"

namespace gradwire::observe::flight_recorder_test {
namespace {

// A child process that records into memory of this one, as gradwire-run lends it.
class Writer {
 public:
  explicit Writer(const std::function<void()>& body) : Writer(body, -1) {}
  // With `shared` >= 0: the memory of another Writer.
  Writer(const std::function<void()>& body, int shared) {
    if (shared < 0) {
      file_ = UniqueFd(::memfd_create("flight", MFD_CLOEXEC));
      EXPECT_EQ(::ftruncate(file_.get(), static_cast<off_t>(format::kLongFileBytes)), 0);
      shared = file_.get();
    }
    memory_ = Mapping::of_file(shared, format::kLongFileBytes);
    const std::string path = concat("/proc/", ::getpid(), "/fd/", shared);
    pid_ = ::fork();
    if (pid_ != 0) return;
    ::setenv("GRADWIRE_FLIGHT_RECORDER", path.c_str(), 1);
    ::setenv("RANK", "3", 1);
    ::setenv("WORLD_SIZE", "5", 1);
    body();
    ::_exit(testing::Test::HasFailure() ? 1 : 0);
  }
  ~Writer() {
    if (pid_ > 0) finish(SIGKILL);
  }
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;

  // Ends the child with a signal, or waits for its end; returns its exit code, or -1 for a signal.
  int finish(int signal = 0) {
    if (signal != 0) ::kill(pid_, signal);
    int status = 0;
    ::waitpid(pid_, &status, 0);
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  std::optional<RankTable> read() const { return read_flight_memory({memory_.data(), memory_.bytes()}); }
  std::vector<RankTable> earlier() const { return read_earlier_processes({memory_.data(), memory_.bytes()}); }
  format::File& memory() const { return *reinterpret_cast<format::File*>(memory_.data()); }
  RankTable table() const {
    auto table = read();
    EXPECT_TRUE(table.has_value());
    return table.value_or(RankTable{});
  }
  int file() const { return file_.get(); }
  pid_t pid() const { return pid_; }

 private:
  UniqueFd file_;
  Mapping memory_;
  pid_t pid_ = -1;
};

CallArguments all_reduce_of(std::uint64_t count) {
  CallArguments arguments;
  arguments.kind = CallKind::all_reduce;
  arguments.dtype = 2;
  arguments.count = count;
  arguments.bytes = 4 * count;
  arguments.tag = count << 32;
  return arguments;
}

TEST(FlightRecorder, ACallIsReadWithItsArgumentsItsTimesAndItsEnd) {
  Writer writer([] {
    FlightGroup group;
    group.open("g0", "shm", "a name", 1, 4);
    CallArguments arguments = all_reduce_of(1000);
    arguments.kind = CallKind::broadcast;
    arguments.root = 2;
    arguments.tag = std::uint64_t{7} << 32 | 3 << 16 | 1 << 8;
    const FlightCall call = group.begin(arguments);
    call.started();
    call.ended(nullptr);
    arguments.kind = CallKind::send;
    group.begin(arguments).lost();
    group.begin(all_reduce_of(5));
  });
  EXPECT_EQ(writer.finish(), 0);
  const RankTable table = writer.table();
  EXPECT_EQ(table.rank, 3);
  EXPECT_EQ(table.world, 5);
  ASSERT_EQ(table.groups.size(), 1U);
  const GroupTable& group = table.groups[0];
  EXPECT_EQ(group.path, "g0");
  EXPECT_EQ(group.backend, "shm");
  EXPECT_EQ(group.name, "a name");
  EXPECT_EQ(group.rank, 1);
  EXPECT_EQ(group.size, 4);
  EXPECT_TRUE(group.closed);
  ASSERT_EQ(group.calls.size(), 3U);
  const CallRow& first = group.calls[0];
  EXPECT_EQ(first.sequence, 1U);
  EXPECT_EQ(first.kind, CallKind::broadcast);
  EXPECT_EQ(first.dtype, 2);
  EXPECT_EQ(first.root, 2);
  EXPECT_EQ(first.count, 1000U);
  EXPECT_EQ(first.bytes, 4000U);
  EXPECT_EQ(first.tag, std::uint64_t{7} << 32 | 3 << 16 | 1 << 8);
  EXPECT_EQ(first.outcome, Outcome::good);
  EXPECT_LE(first.called, first.started);
  EXPECT_LE(first.started, first.ended);
  EXPECT_NE(first.thread, 0U);
  EXPECT_EQ(group.calls[1].sequence, 0U) << "a message has no place among the collectives";
  EXPECT_EQ(group.calls[1].outcome, Outcome::unknown);
  EXPECT_EQ(group.calls[2].sequence, 2U);
  EXPECT_EQ(group.calls[2].outcome, Outcome::none);
  EXPECT_EQ(group.calls[2].ended, 0);
}

TEST(FlightRecorder, AMessageIsReadWithItsTag) {
  Writer writer([] {
    FlightGroup group;
    group.open("g0", "shm", "", 0, 2);
    for (const auto& [kind, tag] :
         {std::pair(CallKind::send, 7), std::pair(CallKind::recv, 0), std::pair(CallKind::all_reduce, -1)}) {
      CallArguments arguments = all_reduce_of(10);
      arguments.kind = kind;
      arguments.tag = 0;
      arguments.message_tag = tag;
      const FlightCall call = group.begin(arguments);
      const std::string words = call.name();
      if ((words.find(", tag 7") != std::string::npos) != (tag == 7)) ::_exit(2);
      call.ended(nullptr);
    }
  });
  EXPECT_EQ(writer.finish(), 0);
  const RankTable table = writer.table();
  ASSERT_EQ(table.groups.size(), 1U);
  const auto& calls = table.groups[0].calls;
  ASSERT_EQ(calls.size(), 3U);
  EXPECT_EQ(calls[0].message_tag, 7);
  EXPECT_EQ(calls[1].message_tag, 0);
  EXPECT_EQ(calls[2].message_tag, -1);
}

// As under mpirun, or with a rank that the program passes.
TEST(FlightRecorder, WithoutRanksInTheEnvironmentThoseOfTheLargestGroupAreRecorded) {
  const auto use_group = [](int rank, int size) {
    tell_ranks(rank, size);
    FlightGroup group;
    group.open(concat("of ", size), "shm", "", rank, size);
    group.begin(all_reduce_of(1)).ended(nullptr);
  };
  Writer writer([&] {
    ::unsetenv("RANK");
    ::unsetenv("WORLD_SIZE");
    for (const auto& [rank, size] : {std::pair(1, 2), std::pair(2, 4), std::pair(3, 4), std::pair(0, 1)})
      use_group(rank, size);
  });
  EXPECT_EQ(writer.finish(), 0);
  EXPECT_EQ(writer.table().rank, 2);
  EXPECT_EQ(writer.table().world, 4);
  Writer with_environment([&] { use_group(1, 2); });
  EXPECT_EQ(with_environment.finish(), 0);
  EXPECT_EQ(with_environment.table().rank, 3);
  EXPECT_EQ(with_environment.table().world, 5);
  Writer untold([] {
    ::unsetenv("RANK");
    FlightGroup group;
    group.open("g0", "shm", "", 0, 2);
  });
  EXPECT_EQ(untold.finish(), 0);
  EXPECT_EQ(untold.table().rank, -1);
}

TEST(FlightRecorder, TheLastCallsAreKeptAndCallsUnderWayStay) {
  Writer writer([] {
    FlightGroup group;
    group.open("g0", "shm", "", 0, 2);
    group.begin(all_reduce_of(1));  // never ends
    for (std::uint64_t i = 2; i <= 1000; ++i) group.begin(all_reduce_of(i)).ended(nullptr);
  });
  EXPECT_EQ(writer.finish(), 0);
  const RankTable table = writer.table();
  ASSERT_EQ(table.groups.size(), 1U);
  const auto& calls = table.groups[0].calls;
  ASSERT_EQ(calls.size(), format::kCalls);
  EXPECT_EQ(calls[0].count, 1U) << "the call under way must not be overwritten";
  EXPECT_EQ(calls[0].outcome, Outcome::none);
  for (std::size_t i = 1; i < calls.size(); ++i) EXPECT_EQ(calls[i].sequence, 1000 - calls.size() + 1 + i);
  EXPECT_EQ(table.lost_calls, 0U);
}

TEST(FlightRecorder, ErrorsAreKeptWithTheirKindTheRanksTheyNameAndTheirWords) {
  Writer writer([] {
    FlightGroup group;
    group.open("g0", "shm", "", 0, 4);
    const auto fail = [&](const auto& error) { group.begin(all_reduce_of(1)).ended(std::make_exception_ptr(error)); };
    fail(PeerError("ranks 1 and 3 have gone", {1, 3}));
    fail(TimeoutError("rank 2 did not come", {2}));
    fail(MismatchError("others called something else"));
    fail(AbortedError("abort() was called"));
    fail(InvalidArgument("no such root"));
    fail(std::bad_alloc());
    fail(std::runtime_error("something"));
    fail(std::runtime_error("something"));
    note_failure(NoteKind::hook_failed, "the hook threw");
  });
  EXPECT_EQ(writer.finish(), 0);
  const RankTable table = writer.table();
  ASSERT_EQ(table.groups.size(), 1U);
  const auto& calls = table.groups[0].calls;
  ASSERT_EQ(calls.size(), 8U);
  const std::vector<Outcome> expected = {Outcome::peer,    Outcome::timeout,  Outcome::mismatch, Outcome::aborted,
                                         Outcome::refused, Outcome::resource, Outcome::other,    Outcome::other};
  for (std::size_t i = 0; i < calls.size(); ++i) EXPECT_EQ(calls[i].outcome, expected[i]) << i;
  EXPECT_EQ(calls[0].peers, 0b1010U);
  EXPECT_EQ(calls[1].peers, 0b100U);
  ASSERT_EQ(table.notes.size(), 7U) << "refused calls and errors that were noted before are not noted";
  EXPECT_NE(table.notes[0].text.find("ranks 1 and 3 have gone"), std::string::npos);
  EXPECT_EQ(table.notes.back().kind, NoteKind::hook_failed);
  EXPECT_EQ(table.notes.back().text, "the hook threw");
}

TEST(FlightRecorder, WhoWaitsForACallIsNotedUntilTheWaitOrTheCallEnds) {
  const auto describe_line = [](const void*) { return std::string("train.py:7 (main)"); };
  Writer writer([&] {
    FlightGroup group;
    group.open("g0", "shm", "", 1, 4);
    CallArguments posted = all_reduce_of(1);
    posted.waits = false;
    group.begin(all_reduce_of(1));  // the caller waits in the call
    group.begin(posted);
    const FlightCall left = group.begin(posted);
    { const FlightWait wait(left); }
    const FlightCall waited = group.begin(posted);
    const FlightCall ended = group.begin(posted);
    ended.ended(nullptr);
    const CallerLine line(7, describe_line, nullptr);
    const FlightWait wait(waited);
    const FlightWait late(ended);
    ::kill(::getpid(), SIGKILL);
  });
  EXPECT_EQ(writer.finish(), -1);
  const RankTable table = writer.table();
  ASSERT_EQ(table.groups.size(), 1U);
  ASSERT_EQ(table.groups[0].calls.size(), 5U);
  std::vector<Waited> noted;
  for (const CallRow& call : table.groups[0].calls) noted.push_back(call.waited);
  EXPECT_EQ(noted, (std::vector<Waited>{Waited::yes, Waited::no, Waited::no, Waited::yes, Waited::not_known}));
  EXPECT_EQ(table.groups[0].calls[0].wait_place.line, "");
  EXPECT_EQ(table.groups[0].calls[3].wait_place.line, "train.py:7 (main)");
}

TEST(FlightRecorder, TheFirstEndOfACallCounts) {
  Writer writer([] {
    FlightGroup group;
    group.open("g0", "shm", "", 0, 2);
    const FlightCall call = group.begin(all_reduce_of(1));
    call.started();
    call.ended(nullptr);
    call.ended(std::make_exception_ptr(AbortedError("late")));
    for (int i = 0; i < 256; ++i) group.begin(all_reduce_of(2)).ended(nullptr);
    call.started();  // the record belongs to another call now
    call.ended(std::make_exception_ptr(AbortedError("very late")));
  });
  EXPECT_EQ(writer.finish(), 0);
  const auto calls = writer.table().groups.at(0).calls;
  EXPECT_EQ(calls.size(), format::kCalls);
  for (const CallRow& call : calls) {
    EXPECT_EQ(call.outcome, Outcome::good);
    EXPECT_EQ(call.started, 0);
  }
}

[[gnu::noinline]] const void* here() { return __builtin_return_address(0); }

TEST(FlightRecorder, PlacesAreAnAddressInAModuleOrALine) {
  Writer writer([] {
    FlightGroup group;
    group.open("g0", "shm", "", 0, 2);
    CallArguments arguments = all_reduce_of(1);
    arguments.return_address = here();
    group.begin(arguments).ended(nullptr);
    int described = 0;
    const auto describe = [](const void* context) {
      ++*static_cast<int*>(const_cast<void*>(context));
      return std::string("train.py:41 (main)");
    };
    for (int i = 0; i < 3; ++i) {
      const CallerLine line(17, describe, &described);
      group.begin(arguments).ended(nullptr);
    }
    EXPECT_EQ(described, 1) << "a line is described once";
    group.begin(arguments).ended(nullptr);
  });
  EXPECT_EQ(writer.finish(), 0);
  const auto calls = writer.table().groups.at(0).calls;
  ASSERT_EQ(calls.size(), 5U);
  const std::string program = std::filesystem::read_symlink("/proc/self/exe").filename().string();
  EXPECT_TRUE(calls[0].place.module.ends_with(program)) << calls[0].place.module;
  EXPECT_NE(calls[0].place.offset, 0U);
  for (int i = 1; i <= 3; ++i) EXPECT_EQ(calls[static_cast<std::size_t>(i)].place.line, "train.py:41 (main)");
  EXPECT_EQ(calls[4].place.offset, calls[0].place.offset);
}

#ifdef FIXED_ADDRESS_PROGRAM
// addr2line wants the path of the program, and addresses as the program's own tables have them.
TEST(FlightRecorder, ThePlaceInAProgramWithFixedAddressesThatWasFoundThroughPathIsThatOfItsTables) {
  // The last path is too long for the file.
  for (const std::size_t length : {0, 200, 700, 1100}) {
    SCOPED_TRACE(length);
    const test_support::TemporaryFolder folder;
    const std::filesystem::path root = std::filesystem::canonical(folder.path());
    std::filesystem::path program = root;
    for (std::size_t left = length; left > 0; left -= std::min<std::size_t>(left, 100)) program /= std::string(99, 'p');
    std::filesystem::create_directories(program);
    const std::string path = program.string();
    program /= "program";
    std::filesystem::copy_file(FIXED_ADDRESS_PROGRAM, program);
    const std::string output = (root / "output").string();
    Writer writer([&] {
      ::setenv("PATH", path.c_str(), 1);
      if (std::freopen(output.c_str(), "w", stdout) != nullptr) ::execlp("program", "program", nullptr);
      ::_exit(126);
    });
    EXPECT_EQ(writer.finish(), 0);
    std::uint64_t address = 0;
    std::ifstream(output) >> address;
    const RankTable table = writer.table();
    ASSERT_EQ(table.groups.size(), 1U);
    ASSERT_EQ(table.groups[0].calls.size(), 1U);
    const CallerPlace& place = table.groups[0].calls[0].place;
    EXPECT_NE(address, 0U);
    EXPECT_EQ(place.offset, address);
    if (length <= 700) {
      EXPECT_EQ(place.module, program.string());
    } else {
      EXPECT_TRUE(place.module.starts_with("...") && place.module.ends_with("p/program")) << place.module;
    }
  }
}
#endif

TEST(FlightRecorder, PlacesOfClosedGroupsAreUsedAgainAndNoGroupIsMixedUp) {
  Writer writer([] {
    for (int i = 0; i < 200; ++i) {
      FlightGroup group;
      group.open(concat("g", i), "shm", "", 0, 2);
      for (int call = 0; call < 3; ++call) group.begin(all_reduce_of(static_cast<std::uint64_t>(i + 1))).ended(nullptr);
    }
    std::vector<std::unique_ptr<FlightGroup>> open;
    for (int i = 0; i < 70; ++i) {
      open.push_back(std::make_unique<FlightGroup>());
      open.back()->open(concat("open", i), "shm", "", 0, 2);
      open.back()->begin(all_reduce_of(1000)).ended(nullptr);
    }
    ::_exit(0);
  });
  EXPECT_EQ(writer.finish(), 0);
  const RankTable table = writer.table();
  EXPECT_EQ(table.groups.size(), format::kGroups);
  EXPECT_EQ(table.lost_groups, 70 - format::kGroups);
  for (const GroupTable& group : table.groups) {
    EXPECT_EQ(group.path.substr(0, 4), "open");
    ASSERT_EQ(group.calls.size(), 1U) << "a place that is used again holds none of the earlier group's calls";
    EXPECT_EQ(group.calls[0].count, 1000U);
  }
}

TEST(FlightRecorder, AForkedChildRecordsNothing) {
  Writer writer([] {
    FlightGroup group;
    group.open("g0", "shm", "", 0, 2);
    group.begin(all_reduce_of(1)).ended(nullptr);
    const pid_t child = ::fork();
    if (child == 0) {
      const FlightCall call = group.begin(all_reduce_of(2));
      call.ended(nullptr);
      FlightGroup another;
      another.open("g1", "shm", "", 0, 2);
      note_failure(NoteKind::hook_failed, "in the child");
      ::_exit(call ? 1 : 0);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
    group.begin(all_reduce_of(3)).ended(nullptr);
  });
  EXPECT_EQ(writer.finish(), 0);
  const RankTable table = writer.table();
  ASSERT_EQ(table.groups.size(), 1U);
  ASSERT_EQ(table.groups[0].calls.size(), 2U);
  EXPECT_EQ(table.groups[0].calls[1].count, 3U);
  EXPECT_EQ(table.groups[0].calls[1].sequence, 2U);
  EXPECT_TRUE(table.notes.empty());
}

TEST(FlightRecorder, AFileHasOneWriterAndTheNextOneStartsAfresh) {
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  Writer first([&] {
    FlightGroup group;
    group.open("first", "shm", "", 0, 2);
    group.begin(all_reduce_of(1)).ended(nullptr);
    EXPECT_EQ(::write(ready[1], "x", 1), 1);
    ::pause();
  });
  char byte = 0;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  const auto record = [] {
    FlightGroup group;
    group.open("second", "shm", "", 0, 2);
    EXPECT_TRUE(group.begin(all_reduce_of(2))) << "recorded, if in private memory";
  };
  Writer beside(record, first.file());
  EXPECT_EQ(beside.finish(), 0);
  EXPECT_EQ(first.table().groups.at(0).path, "first");
  EXPECT_EQ(first.table().groups.size(), 1U);
  first.finish(SIGKILL);
  EXPECT_EQ(first.table().groups.at(0).path, "first") << "the records outlive their writer";
  Writer after(record, first.file());
  EXPECT_EQ(after.finish(), 0);
  ASSERT_EQ(first.table().groups.size(), 1U);
  EXPECT_EQ(first.table().groups[0].path, "second");
  EXPECT_EQ(first.table().groups[0].calls.size(), 1U);
}

// A data loader forks children, which have the rank's file open and mapped, and may outlive the rank.
TEST(FlightRecorder, TheChildrenOfADeadRankDoNotKeepTheFile) {
  int ready[2];
  int over[2];
  ASSERT_EQ(::pipe(ready), 0);
  ASSERT_EQ(::pipe(over), 0);
  Writer first([&] {
    FlightGroup group;
    group.open("first", "shm", "", 0, 2);
    group.begin(all_reduce_of(1)).ended(nullptr);
    if (::fork() == 0) {
      ::close(over[1]);
      EXPECT_EQ(::write(ready[1], "x", 1), 1);
      char byte = 0;
      while (::read(over[0], &byte, 1) > 0) {
      }
      ::_exit(0);
    }
    ::pause();
  });
  char byte = 0;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  EXPECT_EQ(first.finish(SIGKILL), -1);
  Writer after(
      [] {
        FlightGroup group;
        group.open("second", "shm", "", 0, 2);
        group.begin(all_reduce_of(2)).ended(nullptr);
      },
      first.file());
  EXPECT_EQ(after.finish(), 0);
  ASSERT_EQ(first.table().groups.size(), 1U);
  EXPECT_EQ(first.table().groups[0].path, "second");
  for (const int end : {ready[0], ready[1], over[0], over[1]}) ::close(end);
}

void record_one_group(const std::string& path) {
  FlightGroup group;
  group.open(path, "shm", "", 0, 2);
  for (std::uint64_t i = 1; i <= 300; ++i) group.begin(all_reduce_of(i)).ended(nullptr);
  ::_exit(0);  // the group remains open, as that of a rank that was killed
}

TEST(FlightRecorder, ALongFileKeepsTheRecordsOfTheProcessesBefore) {
  Writer first([] { record_one_group("process 0"); });
  EXPECT_EQ(first.finish(), 0);
  EXPECT_TRUE(first.earlier().empty());
  for (int process = 1; process <= 7; ++process) {
    Writer next([process] { record_one_group(concat("process ", process)); }, first.file());
    EXPECT_EQ(next.finish(), 0);
    const auto earlier = first.earlier();
    const int kept = std::min(process, static_cast<int>(format::kEarlier));
    ASSERT_EQ(earlier.size(), static_cast<std::size_t>(kept));
    for (int i = 0; i < kept; ++i) {
      const GroupTable& group = earlier[static_cast<std::size_t>(i)].groups.at(0);
      EXPECT_EQ(group.path, concat("process ", process - kept + i)) << "the oldest first";
      EXPECT_EQ(group.calls.size(), format::kCalls);
    }
    EXPECT_EQ(first.table().groups.at(0).path, concat("process ", process));
  }
}

// A process that clears the records of another one, and dies at a page: a read-only one, at which it is killed.
void die_in_clear(const Writer& before, std::size_t page) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::signal(SIGSEGV, SIG_DFL);
    auto* const bytes = reinterpret_cast<std::byte*>(&before.memory());
    ::mprotect(bytes + page * 4096, 4096, PROT_READ);
    start_afresh(before.memory(), before.file(), format::kFileBytes);
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_NE(status, 0) << "the process should have died at page " << page;
}

TEST(FlightRecorder, AProcessThatDiesWhileItClearsLeavesNothingHalf) {
  for (const std::size_t page : {1, 2, 34, 35, 100, 549}) {
    Writer first([] { record_one_group("first"); });
    EXPECT_EQ(first.finish(), 0);
    die_in_clear(first, page);
    EXPECT_FALSE(first.read().has_value()) << "a part of the records of a process is no table";
    Writer next([] { record_one_group("second"); }, first.file());
    EXPECT_EQ(next.finish(), 0);
    const RankTable table = first.table();
    ASSERT_EQ(table.groups.size(), 1U) << page;
    EXPECT_EQ(table.groups[0].path, "second");
    EXPECT_EQ(table.groups[0].calls.size(), format::kCalls);
    EXPECT_EQ(table.groups[0].next_ticket, 300U) << "of the process before nothing is left";
    const auto* const bytes = reinterpret_cast<const std::byte*>(&first.memory().groups[1]);
    EXPECT_TRUE(std::all_of(bytes, reinterpret_cast<const std::byte*>(&first.memory() + 1),
                            [](std::byte byte) { return byte == std::byte{0}; }));
  }
}

TEST(FlightRecorder, AReaderSeesTheRecordsOfOneProcessOrNone) {
  Writer first([] { record_one_group("first"); });
  EXPECT_EQ(first.finish(), 0);
  const std::vector<std::byte> full(reinterpret_cast<std::byte*>(&first.memory()),
                                    reinterpret_cast<std::byte*>(&first.memory() + 1));
  for (int round = 0; round < 50; ++round) {
    // A process, as the next rank is one: the reader's race with plain writes is meant.
    const pid_t clears = ::fork();
    if (clears == 0) {
      start_afresh(first.memory(), first.file(), format::kFileBytes);
      ::_exit(0);
    }
    std::optional<RankTable> table;
    do {
      table = first.read();
      if (!table) break;
      EXPECT_TRUE(table->groups.size() == 1 && table->groups[0].calls.size() == format::kCalls);
    } while (!HasFailure());
    EXPECT_EQ(::waitpid(clears, nullptr, 0), clears);
    EXPECT_FALSE(first.read().has_value()) << "cleared, and nobody has written yet";
    std::copy(full.begin(), full.end(), reinterpret_cast<std::byte*>(&first.memory()));
  }
}

// The ranks of a group count its collectives alike, although one of them made calls that were refused long ago.
TEST(FlightRecorder, RefusedCallsDoNotShiftTheNumbersOfTheOthers) {
  Writer writer([] {
    FlightGroup group;
    group.open("g0", "shm", "", 0, 2);
    const FlightCall waits = group.begin(all_reduce_of(1));
    for (int i = 0; i < 3; ++i)
      group.begin(all_reduce_of(1000)).ended(std::make_exception_ptr(InvalidArgument("no such root")));
    CallArguments message = all_reduce_of(7);
    message.kind = CallKind::send;
    group.begin(message).ended(std::make_exception_ptr(InvalidArgument("no such peer")));
    for (std::uint64_t i = 2; i <= 400; ++i) {
      const FlightCall call = group.begin(all_reduce_of(i));
      EXPECT_EQ(call.name(), concat("all_reduce (call ", i, " of group g0, iteration ", i, " bucket 0 stage 0)"));
      call.ended(nullptr);
    }
    EXPECT_EQ(waits.name(), "all_reduce (call 1 of group g0, iteration 1 bucket 0 stage 0)");
  });
  EXPECT_EQ(writer.finish(), 0);
  const auto calls = writer.table().groups.at(0).calls;
  ASSERT_EQ(calls.size(), format::kCalls);
  for (const CallRow& call : calls) EXPECT_EQ(number_of(call), call.count);
}

TEST(FlightRecorder, OffRecordsNothingAndWithoutAFileThereIsPrivateMemory) {
  Writer off([] {
    ::setenv("GRADWIRE_FLIGHT_RECORDER", "off", 1);
    FlightGroup group;
    group.open("g0", "shm", "", 0, 2);
    EXPECT_FALSE(group.begin(all_reduce_of(1)));
    EXPECT_TRUE(flight_memory().empty());
  });
  EXPECT_EQ(off.finish(), 0);
  EXPECT_FALSE(off.read().has_value());
  for (const char* path : {"", "/nowhere/at/all", "/dev/null"}) {
    Writer elsewhere([path] {
      ::setenv("GRADWIRE_FLIGHT_RECORDER", path, 1);
      FlightGroup group;
      group.open("g0", "shm", "", 0, 2);
      EXPECT_TRUE(group.begin(all_reduce_of(1)));
      const auto table = read_flight_memory(flight_memory());
      EXPECT_TRUE(table && table->groups.at(0).calls.size() == 1);
    });
    EXPECT_EQ(elsewhere.finish(), 0) << path;
  }
}

TEST(FlightRecorder, CallInProgressHandsItsCallOutOnce) {
  Writer writer([] {
    FlightGroup group;
    group.open("g0", "shm", "", 0, 2);
    EXPECT_FALSE(take_call());
    const CallInProgress outer(group.begin(all_reduce_of(1)));
    {
      const CallInProgress inner(group.begin(all_reduce_of(2)));
      take_call().ended(nullptr);
      EXPECT_TRUE(inner.taken());
      EXPECT_FALSE(take_call());
      EXPECT_FALSE(outer.taken());
    }
    EXPECT_TRUE(take_call());
  });
  EXPECT_EQ(writer.finish(), 0);
  const auto calls = writer.table().groups.at(0).calls;
  EXPECT_EQ(calls.at(0).outcome, Outcome::none);
  EXPECT_EQ(calls.at(1).outcome, Outcome::good);
}

// Every field of a record follows from its count, so that parts of two records side by side are seen.
void write_for_ever(FlightGroup& group, std::uint64_t thread) {
  for (std::uint64_t i = 1;; ++i) {
    CallArguments arguments = all_reduce_of(i * 4 + thread);
    arguments.root = static_cast<std::int32_t>(arguments.count & 0x7fffffff);
    const FlightCall call = group.begin(arguments);
    if (i % 3 == 0) call.started();
    call.ended(i % 5 == 0 ? std::make_exception_ptr(PeerError("p", {static_cast<int>(thread)})) : nullptr);
  }
}

void expect_whole(const CallRow& row) {
  EXPECT_EQ(row.kind, CallKind::all_reduce);
  EXPECT_EQ(row.bytes, 4 * row.count);
  EXPECT_EQ(row.tag, row.count << 32);
  EXPECT_EQ(static_cast<std::uint64_t>(row.root), row.count & 0x7fffffff);
  EXPECT_NE(row.called, 0);
  if (row.outcome == Outcome::none) {
    EXPECT_EQ(row.ended, 0);
    return;
  }
  const bool failed = row.count / 4 % 5 == 0;
  EXPECT_EQ(row.outcome, failed ? Outcome::peer : Outcome::good);
  EXPECT_EQ(row.peers, failed ? std::uint64_t{1} << row.count % 4 : 0U);
  EXPECT_GE(row.ended, row.called);
}

TEST(FlightRecorder, WhatIsReadIsWholeWhenTheWriterRunsAndWhenItWasKilledAtAnyMoment) {
  std::mt19937_64 random(20261124);
  std::uint64_t rows_read = 0;
  for (int kill = 0; kill < 100; ++kill) {
    Writer writer([] {
      FlightGroup group;
      group.open("g0", "shm", "", 0, 8);
      std::vector<std::thread> threads;
      for (std::uint64_t thread = 0; thread < 3; ++thread)
        threads.emplace_back([&group, thread] { write_for_ever(group, thread); });
      threads.front().join();
    });
    const std::uint64_t moment = 1 + random() % 5000;
    std::optional<RankTable> table;
    do {
      table = writer.read();
      if (!table || table->groups.empty()) continue;
      for (const CallRow& row : table->groups[0].calls) expect_whole(row);
      rows_read += table->groups[0].calls.size();
    } while (!table || table->groups.empty() || table->groups[0].next_ticket < moment);
    EXPECT_EQ(writer.finish(SIGKILL), -1);
    table = writer.table();
    ASSERT_EQ(table->groups.size(), 1U);
    // Each of the three threads may have been killed in the middle of a record.
    EXPECT_GE(table->groups[0].calls.size(), std::min<std::size_t>(format::kCalls, moment) - 3);
    for (const CallRow& row : table->groups[0].calls) expect_whole(row);
    if (HasFailure()) return;
  }
  EXPECT_GT(rows_read, 0U);
}

TEST(FlightRecorder, AnyBytesAreFineForTheReader) {
  EXPECT_FALSE(read_flight_memory({}).has_value());
  std::vector<std::byte> bytes(flight_memory_bytes());
  EXPECT_FALSE(read_flight_memory(bytes).has_value()) << "nobody has written yet";
  std::mt19937_64 random(3);
  for (int round = 0; round < 5; ++round) {
    for (std::size_t i = 0; i + 8 <= bytes.size(); i += 8) {
      const std::uint64_t word = round % 2 == 0 ? random() : random() & 0xff;
      std::memcpy(&bytes[i], &word, sizeof(word));
    }
    EXPECT_FALSE(read_flight_memory(bytes).has_value()) << "not the magic number";
    std::memcpy(bytes.data(), &format::kMagic, sizeof(format::kMagic));
    bytes[offsetof(format::File, generation)] &= std::byte{0xfe};
    EXPECT_TRUE(read_flight_memory(bytes).has_value());
  }
}

// A file of another program, named by mistake.
TEST(FlightRecorderFile, AForeignFileStaysAsItIs) {
  const std::string path = std::filesystem::temp_directory_path() / concat("gradwire-foreign-", ::getpid());
  for (const std::size_t bytes : {std::size_t{5}, 3 * flight_memory_bytes()}) {
    const std::string text(bytes, 'x');
    std::ofstream(path, std::ios::binary) << text;
    const pid_t child = ::fork();
    if (child == 0) {
      ::setenv("GRADWIRE_FLIGHT_RECORDER", path.c_str(), 1);
      const bool records = open_flight_memory() != nullptr;
      ::_exit(records ? 0 : 1);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0) << "it records in memory";
    std::ifstream file(path, std::ios::binary);
    EXPECT_EQ((std::string{std::istreambuf_iterator<char>(file), {}}), text);
  }
  std::filesystem::remove(path);
}

// What a process writes to stderr that opens its flight memory in the file of that path.
std::string said_when_opening(const std::string& path) {
  ::testing::internal::CaptureStderr();
  const pid_t child = ::fork();
  if (child == 0) {
    ::setenv("GRADWIRE_FLIGHT_RECORDER", path.c_str(), 1);
    ::_exit(open_flight_memory() != nullptr ? 0 : 1);
  }
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  return ::testing::internal::GetCapturedStderr();
}

TEST(FlightRecorderFile, TheFolderOfTheFileIsMade) {
  const std::filesystem::path folder = std::filesystem::temp_directory_path() / concat("gradwire-made-", ::getpid());
  const std::filesystem::path file = folder / "one" / "rank-0.flight";
  EXPECT_EQ(said_when_opening(file), "");
  EXPECT_GE(std::filesystem::file_size(file), flight_memory_bytes());
  EXPECT_NE(said_when_opening(file / "rank-1.flight").find("cannot be opened: Not a directory"), std::string::npos);
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace gradwire::observe::flight_recorder_test
