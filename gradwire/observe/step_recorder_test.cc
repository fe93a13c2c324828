// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The step recorder: what the trace points of a step become, in memory and in the file, as another process reads the
// file, also after kill -9. Each test records in a forked child, because a process has one recorder.
#include "gradwire/observe/step_recorder.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <bit>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "gradwire/base/error.h"
#include "gradwire/base/os_handles.h"
#include "gradwire/base/strings.h"
#include "gradwire/base/trace.h"
#include "gradwire/observe/record_file_internal.h"
#include "gradwire/observe/record_format_internal.h"
#include "gradwire/observe/run_sums.h"
#include "tests/support/temporary_folder.h"

namespace gradwire::observe::step_recorder_test {
namespace {

namespace format = record_format;
using format::Record;
using format::RecordKind;
using format::Sums;
using trace::point;

// What the lane of DDP does with a bucket.
void reduce(std::size_t bucket, int lane, int calls) {
  point("bucket.begin", 0, bucket, {.lane = lane, .word = bucket == 0 ? "fp16_compress" : "top_k"});
  for (int i = 0; i < calls; ++i) {
    point("group.call", 0, 0, {.kind = 3, .bytes = 100, .sent = 60});
    point("group.call", 0, 0, {.kind = 2, .bytes = 7});  // a call that the group makes itself
    point("group.return");
    point("group.return");
  }
  point("bucket.return", 0, bucket, {.sent = 40, .lane = lane});
  point("bucket.end", 0, bucket);
}

// A step with a bucket on a lane and one on this thread.
void take_step() {
  point("ddp.forward");
  point("ddp.backward");
  point("ddp.launch", 0, 0, {.bytes = 800});
  std::thread lane([] { reduce(0, 0, 3); });
  point("group.call", 0, 0, {.kind = 1});  // of the program
  point("group.return");
  point("ddp.launch", 0, 1, {.bytes = 400});
  reduce(1, -1, 2);
  point("ddp.wait");
  lane.join();
  point("ddp.finished");
}

// Runs `body` in a child that records into `folder` ("": nowhere). Returns the child's exit code; -1 after a signal.
int in_child(const std::string& folder, const std::function<void()>& body) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::unsetenv("RANK");
    ::unsetenv("WORLD_SIZE");
    ::unsetenv("GRADWIRE_RECORD");
    if (!folder.empty()) ::setenv("GRADWIRE_RECORD", folder.c_str(), 1);
    body();
    ::_exit(testing::Test::HasFailure() ? 1 : 0);
  }
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

class StepRecorder : public ::testing::Test {
 protected:
  const format::File& file(int rank) {
    const UniqueFd fd(::open(concat(folder_, "/rank-", rank, ".record").c_str(), O_RDWR | O_CLOEXEC));
    EXPECT_TRUE(fd);
    mapping_ = Mapping::of_file(fd.get(), format::kFileBytes);
    return *reinterpret_cast<const format::File*>(mapping_.data());
  }

  const test_support::TemporaryFolder temporary_;
  const std::string folder_ = temporary_.path();
  Mapping mapping_;
};

std::map<RecordKind, int> count_of(const format::File& file) {
  std::map<RecordKind, int> count;
  for (const Record& record : file.records) {
    if (record.words[Record::state] != 0) ++count[static_cast<RecordKind>(record.words[Record::kind] & 0xff)];
  }
  return count;
}

TEST_F(StepRecorder, CallsBelongToTheBucketOfTheirThread) {
  const auto body = [] {
    record_steps();
    for (std::uint64_t number = 0; number < 2; ++number) {
      begin_step();
      take_step();
      end_step();
      const StepTimes step = last_step();
      EXPECT_EQ(step.number, number);
      ASSERT_EQ(step.buckets.size(), 2U);
      EXPECT_EQ(step.buckets[0].calls.size(), 3U);
      EXPECT_EQ(step.buckets[1].calls.size(), 2U);
      EXPECT_EQ(step.buckets[0].lane, 0);
      EXPECT_EQ(step.buckets[1].lane, -1);
      EXPECT_EQ(step.buckets[0].hook, "fp16_compress");
      EXPECT_EQ(step.buckets[0].bytes, 800U);
      EXPECT_EQ(step.buckets[1].sent, 40U);
      ASSERT_EQ(step.calls.size(), 1U);
      EXPECT_EQ(step.calls[0].kind, CallKind::barrier);
      EXPECT_LE(step.whole.begin, step.forward.begin);
      EXPECT_EQ(step.forward.end, step.backward.begin);
      EXPECT_LE(step.backward.begin, step.wait.begin);
      EXPECT_EQ(step.wait.end, step.backward.end);
      EXPECT_EQ(step.backward.end, step.rest.begin);
      EXPECT_EQ(step.rest.end, step.whole.end);
      for (const BucketTimes& each : step.buckets) {
        EXPECT_LE(step.backward.begin, each.ready);
        EXPECT_LE(each.ready, each.run.begin);
        std::int64_t last = each.run.begin;
        for (const CallTimes& call : each.calls) {
          EXPECT_EQ(call.kind, CallKind::all_reduce);
          EXPECT_EQ(call.bytes, 100U);
          EXPECT_LE(last, call.span.begin);
          EXPECT_LE(call.span.begin, call.span.end);
          last = call.span.end;
        }
        EXPECT_LE(last, each.returned);
        EXPECT_LE(each.returned, each.run.end);
        EXPECT_LE(each.run.end, step.wait.end);
      }
      EXPECT_EQ(step_totals().sent, 80 * (number + 1));
    }
  };
  EXPECT_EQ(in_child("", body), 0);
}

// Gradient accumulation: only the last of several passes is synchronized.
TEST_F(StepRecorder, AStepHasAllForwardPassesUpToTheSynchronizedOne) {
  const auto body = [] {
    record_steps();
    for (int step = 0; step < 3; ++step) {
      point("ddp.forward");
      point("ddp.forward");
      take_step();
    }
    EXPECT_EQ(last_step().number, 1U);
    EXPECT_EQ(step_totals().steps, 2U);
    EXPECT_EQ(last_step().whole.end, last_step().rest.end);
  };
  EXPECT_EQ(in_child("", body), 0);
}

TEST_F(StepRecorder, AnIterationThatFailedAndIsDoneAgainIsOneStep) {
  const auto body = [] {
    record_steps();
    for (const int lane : {-1, 0}) {
      point("ddp.forward");
      point("ddp.backward");
      point("ddp.launch", 0, 0, {.bytes = 8});
      point("bucket.begin", 0, 0, {.lane = lane});
      point("group.call", 0, 0, {.kind = 3});
      point("group.return");
      point("bucket.return", 0, 0, {.lane = lane});  // and no average comes
    }
    take_step();
    end_step();
    const StepTotals totals = step_totals();
    EXPECT_EQ(totals.steps, 1U);
    EXPECT_EQ(last_step().buckets.size(), 4U);
    EXPECT_GE(totals.hook, 0);
    EXPECT_LT(totals.hook, 2 * totals.whole);
    EXPECT_GE(totals.split.compute, 0);
    EXPECT_EQ(totals.split.compute + totals.split.communication + totals.split.hook, totals.whole);
    EXPECT_EQ(totals.forward + totals.backward + totals.wait + totals.rest, totals.whole);
  };
  EXPECT_EQ(in_child("", body), 0);
}

void reduce_of(std::uint64_t ddp) {
  point("bucket.begin", 0, 0, {.kind = ddp, .lane = -1, .word = ddp == 1 ? "one" : "two"});
  point("bucket.return", 0, 0, {.kind = ddp, .sent = 10 * ddp});
  point("bucket.end", 0, 0, {.kind = ddp});
}

// An encoder and a decoder: both have a bucket 0, both are launched before either ends, and each waits for its own.
TEST_F(StepRecorder, BucketsAndWaitsOfTwoObjectsInOnePassAreKeptApart) {
  const auto body = [] {
    record_steps();
    point("ddp.forward");
    point("ddp.forward");
    point("ddp.backward");
    point("ddp.launch", 0, 0, {.kind = 1, .bytes = 100});
    point("ddp.launch", 0, 0, {.kind = 2, .bytes = 200});
    reduce_of(1);
    reduce_of(2);
    for (int object = 0; object < 2; ++object) {
      point("ddp.wait");
      point("ddp.finished");
    }
    end_step();
    const StepTimes step = last_step();
    ASSERT_EQ(step.buckets.size(), 2U);
    for (const BucketTimes& each : step.buckets) {
      EXPECT_EQ(each.hook, each.bytes == 100 ? "one" : "two");
      EXPECT_EQ(each.sent, each.bytes / 10);
      EXPECT_GE(each.run.begin, step.whole.begin);
      EXPECT_LE(each.run.end, step.whole.end);
    }
    ASSERT_EQ(step.earlier_waits.size(), 1U);
    EXPECT_LE(step.earlier_waits[0].end, step.wait.begin);
    EXPECT_EQ(step.wait.end, step.rest.begin);
    const StepTotals totals = step_totals();
    EXPECT_EQ(totals.steps, 1U);
    EXPECT_EQ(totals.forward + totals.backward + totals.wait + totals.rest, totals.whole);
  };
  EXPECT_EQ(in_child("", body), 0);
}

// A GAN within begin_step() and end_step().
TEST_F(StepRecorder, AMarkedStepMayHaveSeveralPasses) {
  const auto body = [] {
    record_steps();
    begin_step();
    for (int pass = 0; pass < 3; ++pass) take_step();
    end_step();
    EXPECT_EQ(last_step().earlier_waits.size(), 2U);
    EXPECT_EQ(last_step().buckets.size(), 6U);
    const StepTotals totals = step_totals();
    EXPECT_EQ(totals.steps, 1U);
    EXPECT_EQ(totals.forward + totals.backward + totals.wait + totals.rest, totals.whole);
    EXPECT_EQ(totals.split.compute + totals.split.communication + totals.split.hook, totals.whole);
    begin_step();
    take_step();
    end_step();
    EXPECT_TRUE(last_step().earlier_waits.empty());
  };
  EXPECT_EQ(in_child("", body), 0);
}

// As where a peer dies.
TEST_F(StepRecorder, AStepMayEndWithinAFurtherWait) {
  const auto body = [] {
    record_steps();
    begin_step();
    take_step();
    point("ddp.wait");
    const auto begin = std::chrono::steady_clock::now();
    while (std::chrono::steady_clock::now() - begin < std::chrono::milliseconds(2)) continue;
    end_step();
    const StepTotals totals = step_totals();
    EXPECT_GE(totals.backward, 0);
    EXPECT_GE(totals.wait, 2'000'000);
    EXPECT_EQ(totals.forward + totals.backward + totals.wait + totals.rest, totals.whole);
  };
  EXPECT_EQ(in_child("", body), 0);
}

TEST_F(StepRecorder, ABucketThatBeganWhileNothingWasRecordedHasNoTime) {
  const auto body = [] {
    record_steps();
    point("ddp.forward");
    point("ddp.backward");
    point("ddp.launch", 0, 0, {.kind = 1, .bytes = 8});
    set_recording(false);
    point("bucket.begin", 0, 0, {.kind = 1});
    set_recording(true);
    point("bucket.return", 0, 0, {.kind = 1});
    point("bucket.end", 0, 0, {.kind = 1});
    end_step();
    EXPECT_EQ(last_step().buckets.at(0).run.end, 0);
    EXPECT_EQ(step_totals().hook, 0);
  };
  EXPECT_EQ(in_child("", body), 0);
}

TEST_F(StepRecorder, ARecordingMayBeSwitchedOffAndOn) {
  const auto body = [] {
    set_recording(true);  // there is no recorder yet
    EXPECT_FALSE(trace::watched());
    record_steps();
    for (int step = 0; step < 4; ++step) {
      set_recording(step % 2 == 1);
      EXPECT_EQ(trace::watched(), step % 2 == 1);
      take_step();
    }
    end_step();
    EXPECT_EQ(step_totals().steps, 2U);
  };
  EXPECT_EQ(in_child("", body), 0);
}

TEST_F(StepRecorder, SwitchingInTheMiddleOfACallSilencesNoThread) {
  const auto body = [] {
    record_steps();
    begin_step();
    point("group.call", 0, 0, {.kind = 1});
    point("work.wait");
    set_recording(false);
    point("work.waited");
    point("group.return");
    set_recording(true);
    point("group.call", 0, 0, {.kind = 2});
    point("group.return");
    point("work.wait");
    const auto begin = std::chrono::steady_clock::now();
    while (std::chrono::steady_clock::now() - begin < std::chrono::microseconds(5)) continue;
    point("work.waited");
    end_step();
    ASSERT_EQ(last_step().calls.size(), 1U) << "the call whose end was missed is gone";
    EXPECT_EQ(last_step().calls[0].kind, CallKind{2});
    EXPECT_EQ(last_step().waits.size(), 1U);
  };
  EXPECT_EQ(in_child("", body), 0);
}

TEST_F(StepRecorder, TheFileHoldsWhatAutoMeasuredAndChose) {
  const auto body = [] {
    record_from_environment(0, 1);
    point("auto.hook", 0, 7, {.kind = 1500, .lane = 0, .word = "int8"});
    point("auto.shape", 0, 8, {.kind = 2500, .bytes = 2 << 20, .lane = 4, .word = "int8"});
    point("auto.chosen", 0, 9, {.bytes = 2 << 20, .lane = 4, .word = "int8"});
  };
  EXPECT_EQ(in_child(folder_, body), 0);
  const format::File& all = file(0);
  EXPECT_EQ(count_of(all)[RecordKind::choice], 3);
  EXPECT_STREQ(all.hook_names[0].data(), "int8");
  constexpr std::uint64_t kExpected[3][5] = {{1, 0, 1500, 7, 0}, {2, 2 << 20, 2500, 8, 4}, {3, 2 << 20, 0, 9, 4}};
  for (std::size_t i = 0; i < 3; ++i) {
    const auto& words = all.records[i].words;
    EXPECT_EQ(words[Record::kind] >> 8, std::uint64_t{1} << 24 | kExpected[i][0]) << "the first name, and the kind";
    EXPECT_EQ(words[Record::bytes], kExpected[i][1]);
    EXPECT_EQ(words[Record::first], kExpected[i][2]);
    EXPECT_EQ(words[Record::second], kExpected[i][3]);
    EXPECT_EQ(words[Record::third], kExpected[i][4]);
  }
}

TEST_F(StepRecorder, AnotherProcessTakesNoFileThatIsBeingWritten) {
  const auto body = [this] {
    record_from_environment(0, 1);
    const auto child = [this] {
      try {
        RecordFile::make(folder_, 0, 1);
        ADD_FAILURE() << "the rank's file was replaced";
      } catch (const ResourceError& error) {
        EXPECT_NE(std::string(error.what()).find(concat("process ", ::getppid(), " writes")), std::string::npos)
            << error.what();
      }
      RecordFile::make(folder_, 1, 2);
    };
    EXPECT_EQ(in_child(folder_, child), 0);
    take_step();
    end_step();
  };
  EXPECT_EQ(in_child(folder_, body), 0);
  EXPECT_EQ(count_of(file(0))[RecordKind::step], 1);
  RecordFile::make(folder_, 0, 1);  // the process has ended
  EXPECT_EQ(count_of(file(0))[RecordKind::step], 0);
}

TEST_F(StepRecorder, ACallThatThrewEndsAndALossIsKept) {
  const auto body = [] {
    record_steps();
    tell_loss(1);  // before any step
    begin_step();
    tell_loss(2.5);
    point("group.return");  // of a call from before the recording
    point("work.waited");
    take_step();
    end_step();
    EXPECT_EQ(last_step().loss, 2.5);
    EXPECT_EQ(last_step().buckets[0].calls.size(), 3U);
    tell_loss(3.5);
    EXPECT_EQ(last_step().loss, 3.5);
  };
  EXPECT_EQ(in_child("", body), 0);
}

TEST_F(StepRecorder, ALossThatIsToldAfterItsStepChangesTheVersion) {
  const auto body = [this] {
    record_from_environment(0, 1);
    take_step();
    end_step();
    const auto version = [this] { return std::uint64_t{file(0).version}; };
    const std::uint64_t before = version();
    tell_loss(0.5);
    if (version() != before + 2) ::_exit(1);
  };
  EXPECT_EQ(in_child(folder_, body), 0);
}

// What is told may be a NaN of any kind, and is not what was not told.
TEST_F(StepRecorder, ALossThatIsNoNumberIsTold) {
  constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
  const auto body = [] {
    record_from_environment(0, 1);
    // Three rows for each two of the course before it was halved: told 1, told nothing, told a NaN, ...
    for (std::uint64_t step = 0; step < format::kRows + 1; ++step) {
      take_step();
      if (step % 4 == 0) tell_loss(step % 8 == 0 ? 1 : -kNaN);
      if (step % 4 == 1) tell_loss(step % 8 == 1 ? kNaN : 1);
      end_step();
    }
  };
  EXPECT_EQ(in_child(folder_, body), 0);
  const format::File& all = file(0);
  ASSERT_EQ(all.rows, format::kRows / 2 + 1);
  const auto& table = all.tables[all.table];
  for (std::size_t row = 0; row < format::kRows / 2; ++row) {
    const std::uint64_t loss = table[row].words[Sums::loss];
    if (row % 2 == 0) {
      EXPECT_NE(loss, format::kNoLoss) << "row " << row;
      EXPECT_TRUE(std::isnan(std::bit_cast<double>(loss))) << "row " << row << ": one of its two steps had it";
    } else {
      EXPECT_EQ(loss, format::kNoLoss) << "row " << row;
    }
  }
}

TEST_F(StepRecorder, TheFileHoldsWhatEndedBeforeKill9) {
  const auto body = [] {
    record_from_environment(2, 3);
    for (int step = 0; step < 5; ++step) take_step();
    tell_loss(0.25);
    ::raise(SIGKILL);
  };
  EXPECT_EQ(in_child(folder_, body), -1);
  const format::File& all = file(2);
  EXPECT_EQ(all.magic, format::kMagic);
  EXPECT_EQ(all.ranks, (std::uint64_t{2} << 32 | 3));
  auto count = count_of(all);
  EXPECT_EQ(count[RecordKind::step], 4);  // the fifth had not ended
  EXPECT_EQ(count[RecordKind::bucket], 10);
  EXPECT_EQ(count[RecordKind::call], 5 * 6);
  EXPECT_EQ(count[RecordKind::loss], 1);
  EXPECT_EQ(all.totals.words[Sums::steps], 4U);
  EXPECT_EQ(all.totals.words[Sums::sent], 4U * 80);
  EXPECT_EQ(all.phase, static_cast<std::uint64_t>(format::Phase::rest));
  EXPECT_EQ(all.names, 2U);
  std::set<std::string> names{all.hook_names[0].data(), all.hook_names[1].data()};
  EXPECT_EQ(names, (std::set<std::string>{"fp16_compress", "top_k"}));
  EXPECT_NE(std::string(all.program.data()).find("step_recorder_test"), std::string::npos);
  EXPECT_EQ(all.rows, 4U);
}

// A process that ends with the object, also where a test gives up.
struct Child {
  pid_t pid;
  ~Child() {
    ::kill(pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
  }
};

// What another process reads while the rank writes is from one moment.
TEST_F(StepRecorder, SumsThatAreReadMeanwhileBelongTogether) {
  constexpr std::uint64_t kEnough = 20000;
  constexpr int kLooks = 10;
  const Child child{::fork()};
  if (child.pid == 0) {
    ::unsetenv("RANK");
    ::setenv("GRADWIRE_RECORD", folder_.c_str(), 1);
    record_from_environment(0, 1);
    for (;;) {
      point("ddp.forward");
      point("ddp.backward");
      point("ddp.launch", 0, 0, {.bytes = 8});
      reduce(0, -1, 1);
      point("ddp.wait");
      point("ddp.finished");
    }
  }
  EXPECT_FALSE(read_run_sums({}).has_value());
  UniqueFd fd;
  while (!fd || ::lseek(fd.get(), 0, SEEK_END) < static_cast<off_t>(record_file_bytes()))
    fd = UniqueFd(::open((folder_ + "/rank-0.record").c_str(), O_RDWR | O_CLOEXEC));
  mapping_ = Mapping::of_file(fd.get(), record_file_bytes());
  std::uint64_t last = 0;
  int looks = 0;
  while (last < kEnough || looks <= kLooks) {
    const auto sums = read_run_sums({mapping_.data(), mapping_.bytes()});
    if (!sums) continue;
    ++looks;
    const StepTotals& totals = sums->totals;
    EXPECT_GE(totals.steps, last);
    last = totals.steps;
    ASSERT_EQ(totals.split.compute + totals.split.communication + totals.split.hook, totals.whole);
    ASSERT_EQ(totals.forward + totals.backward + totals.wait + totals.rest, totals.whole);
    ASSERT_EQ(totals.sent, 40 * totals.steps);
    ASSERT_EQ(totals.call_bytes, 100 * totals.steps);
  }
}

TEST_F(StepRecorder, TheLastStepEndsWithTheProcess) {
  const auto body = [] {
    record_from_environment(0, 1);
    take_step();
    std::exit(0);
  };
  EXPECT_EQ(in_child(folder_, body), 0);
  EXPECT_EQ(count_of(file(0))[RecordKind::step], 1);
}

// A barrier while another rank saves a checkpoint, or the sum of a validation.
TEST_F(StepRecorder, CallsAfterTheLastStepAreNoPartOfIt) {
  const auto body = [this] {
    using Clock = std::chrono::steady_clock;
    record_from_environment(0, 1);
    const auto begin = Clock::now();
    take_step();
    std::ofstream(folder_ + "/nanoseconds") << std::chrono::nanoseconds(Clock::now() - begin).count();
    point("group.call", 0, 0, {.kind = 1, .bytes = 5000});
    const auto late = Clock::now();
    while (Clock::now() - late < std::chrono::milliseconds(100)) std::this_thread::yield();
    point("group.return");
    std::exit(0);
  };
  EXPECT_EQ(in_child(folder_, body), 0);
  const auto& sums = file(0).totals.words;
  EXPECT_EQ(sums[Sums::steps], 1U);
  EXPECT_EQ(sums[Sums::call_bytes], 500U);
  std::uint64_t until_the_call = 0;
  std::ifstream(folder_ + "/nanoseconds") >> until_the_call;
  EXPECT_LE(sums[Sums::whole], until_the_call);
  EXPECT_LE(sums[Sums::compute], sums[Sums::whole]);
}

// A rank that has joined goes on with the others' iterations, after its own last step.
TEST_F(StepRecorder, BucketsAfterTheLastStepAreNoPartOfIt) {
  const auto body = [] {
    record_from_environment(0, 1);
    take_step();
    const std::int64_t end = std::chrono::steady_clock::now().time_since_epoch().count();
    while (std::chrono::steady_clock::now().time_since_epoch().count() == end) continue;
    for (int iteration = 0; iteration < 3; ++iteration) {
      point("ddp.launch", 0, 0, {.bytes = 1 << 20});
      reduce(0, -1, 1);  // a rank that has joined passes neither ddp.wait nor ddp.finished
    }
    std::exit(0);
  };
  EXPECT_EQ(in_child(folder_, body), 0);
  EXPECT_EQ(file(0).totals.words[Sums::sent], 80U);
}

// However long a run is: the file keeps its size, the last records, and a course over all steps.
TEST_F(StepRecorder, ALongRunKeepsItsCourseAtFewerRows) {
  constexpr std::uint64_t kSteps = 3 * format::kRows + 5;
  const auto body = [] {
    record_from_environment(0, 1);
    for (std::uint64_t step = 0; step < kSteps; ++step) {
      begin_step();
      for (int i = 0; i < 5; ++i) {
        point("group.call", 0, 0, {.kind = 3, .bytes = 10});
        point("group.return");
      }
      tell_loss(static_cast<double>(step));
      end_step();
    }
  };
  EXPECT_EQ(in_child(folder_, body), 0);
  EXPECT_EQ(std::filesystem::file_size(folder_ + "/rank-0.record"), format::kFileBytes);
  const format::File& all = file(0);
  EXPECT_EQ(all.totals.words[Sums::steps], kSteps);
  EXPECT_EQ(all.tickets, 7 * kSteps);  // five calls, a loss and the step
  EXPECT_EQ(all.steps_per_row, 4U);
  const auto& table = all.tables[all.table];
  std::uint64_t next = 0;
  std::uint64_t bytes = 0;
  std::uint64_t whole = 0;
  for (std::size_t row = 0; row < all.rows; ++row) {
    const auto& words = table[row].words;
    EXPECT_EQ(words[Sums::first_step], next);
    next += words[Sums::steps];
    bytes += words[Sums::call_bytes];
    whole += words[Sums::whole];
    EXPECT_EQ(std::bit_cast<double>(words[Sums::loss].load()), static_cast<double>(next - 1));
  }
  EXPECT_EQ(next, kSteps);
  EXPECT_EQ(bytes, kSteps * 50);
  EXPECT_EQ(whole, all.totals.words[Sums::whole]);
  for (std::uint64_t ticket = all.tickets - format::kRecords; ticket < all.tickets; ++ticket)
    EXPECT_EQ(all.records[ticket % format::kRecords].words[Record::state], ticket + 1);
}

TEST_F(StepRecorder, AFullDiskDoesNotStopTheProgram) {
  const auto body = [this] {
    // No file may grow beyond a byte.
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit one{1, 1};
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &one), 0);
    testing::internal::CaptureStderr();
    record_from_environment(0, 1);
    record_from_environment(0, 1);
    take_step();
    record_steps();
    take_step();
    EXPECT_EQ(step_totals().steps, 0U);
    EXPECT_FALSE(std::filesystem::exists(folder_ + "/rank-0.record"));
  };
  EXPECT_EQ(in_child(folder_, body), 0);
}

TEST_F(StepRecorder, AFolderThatCannotBeMadeIsSaidOnce) {
  const auto body = [] {
    int pipe[2];
    ASSERT_EQ(::pipe(pipe), 0);
    ::dup2(pipe[1], STDERR_FILENO);
    for (int i = 0; i < 3; ++i) record_from_environment(0, 1);
    take_step();
    ::close(pipe[1]);
    ::close(STDERR_FILENO);
    std::string said;
    char byte = 0;
    while (::read(pipe[0], &byte, 1) == 1) said += byte;
    const auto first = said.find("GRADWIRE_RECORD");
    EXPECT_NE(first, std::string::npos) << said;
    EXPECT_EQ(said.find("GRADWIRE_RECORD", first + 1), std::string::npos) << said;
  };
  EXPECT_EQ(in_child("/proc/no/such/folder", body), 0);
}

TEST_F(StepRecorder, AForkedChildRecordsNothing) {
  const auto body = [] {
    record_from_environment(0, 1);
    take_step();
    const pid_t child = ::fork();
    if (child == 0) {
      for (int i = 0; i < 10; ++i) take_step();
      tell_loss(1);
      ::_exit(0);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
    take_step();
    end_step();
  };
  EXPECT_EQ(in_child(folder_, body), 0);
  EXPECT_EQ(count_of(file(0))[RecordKind::step], 2);
}

}  // namespace
}  // namespace gradwire::observe::step_recorder_test
