// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Runs the built char_lm, alone and under gradwire-run, as a user does. The fixture also checks that no process is
// left.
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "gradwire/base/strings.h"
#include "launch/launcher_fixture_internal.h"

namespace char_lm {
namespace {

using gradwire::concat;
using gradwire::launch::Result;
using Arguments = std::vector<std::string>;
using Json = nlohmann::json;

// What --json wrote.
struct Curve {
  std::vector<std::int64_t> steps;
  std::vector<double> losses;
  std::vector<Json> splits;
  std::vector<Json> timelines;
  Json summary;
};

Curve read_curve(const std::string& file) {
  Curve curve;
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    const Json entry = Json::parse(line);
    if (entry.at("type") == "summary") {
      curve.summary = entry;
    } else if (entry.at("type") == "timeline") {
      curve.timelines.push_back(entry);
    } else if (entry.at("type") == "step") {
      curve.splits.push_back(entry.at("split_seconds"));
      curve.steps.push_back(entry.at("step"));
      curve.losses.push_back(entry.at("loss"));
    }
  }
  return curve;
}

double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
  EXPECT_EQ(a.size(), b.size());
  double largest = 0;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    largest = std::max(largest, std::abs(a[i] - b[i]));
  }
  return largest;
}

class CharLm : public gradwire::launch::LauncherTest {
 protected:
  void SetUp() override {
    LauncherTest::SetUp();
    // Small enough for a test, varied enough that there is something to learn.
    std::ofstream text(scratch("text"));
    for (int i = 0; i < 400; ++i) {
      text << i << " green bottles, and " << i * i << " blue ones, hang on wall number " << i % 7 << ".\n";
    }
  }

  // A model that takes a few milliseconds a step.
  Arguments tiny(const Arguments& more) const {
    Arguments all{CHAR_LM_PROGRAM,
                  "--text",
                  scratch("text"),
                  "--layers",
                  "1",
                  "--width",
                  "32",
                  "--heads",
                  "2",
                  "--context",
                  "16",
                  "--batch",
                  "8",
                  "--threads",
                  "1",
                  "--generate",
                  "20",
                  "--eval-batches",
                  "2",
                  "--log-every",
                  "1"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }

  Result run_ranks(int ranks, const Arguments& command) {
    Arguments all{"-n", std::to_string(ranks)};
    all.insert(all.end(), command.begin(), command.end());
    return run(all);
  }

  // Trains tiny(more) on `ranks` ranks (0: without a launcher) and returns the curve.
  Curve learn(int ranks, Arguments more) {
    const std::string file = scratch(concat("curve", curves_++, ".json"));
    more.insert(more.end(), {"--json", file});
    const Result result = ranks == 0 ? run_alone(tiny(more)) : run_ranks(ranks, tiny(more));
    EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
    output_ = result.out;
    return read_curve(file);
  }

  Result run_alone(const Arguments& command) {
    start_program(command);
    return finish();
  }

  // `launcher` and char_lm with `options` behind it learn what gradwire-run's ranks do, bit for bit.
  void expect_same(const std::string& ranks, const std::string& backend, const Arguments& launcher, Arguments options) {
    const std::string file = scratch("launched.json");
    Arguments command = launcher;
    for (const std::string& word : tiny(options)) command.push_back(word);
    command.insert(command.end(), {"--json", file});
    const Result result = run_alone(command);
    ASSERT_EQ(result.exit_code, 0) << result.out << result.err;
    const Curve launched = read_curve(file);
    EXPECT_EQ(launched.summary.at("backend"), backend);
    EXPECT_EQ(concat(launched.summary.at("world_size").get<int>()), ranks);
    options.insert(options.end(), {"--backend", "shm"});
    const Curve own = learn(std::stoi(ranks), options);
    EXPECT_EQ(launched.losses, own.losses);
    EXPECT_EQ(launched.summary.at("parameter_hash"), own.summary.at("parameter_hash"));
  }

  std::string output_;  // of the last learn()

 private:
  int curves_ = 0;
};

// The point of data parallelism: N ranks with a share of the batch each learn what one rank learns with all of it.
TEST_F(CharLm, CurveDoesNotDependOnTheNumberOfRanks) {
  const Curve alone = learn(1, {"--steps", "100"});
  ASSERT_EQ(alone.losses.size(), 100U);
  for (const int ranks : {2, 4}) {
    const Curve together = learn(ranks, {"--steps", "100"});
    const double difference = largest_difference(together.losses, alone.losses);
    RecordProperty(concat("largest_difference_on_", ranks, "_ranks"), concat(difference));
    EXPECT_LT(difference, 1e-4) << ranks << " ranks";
    EXPECT_NEAR(together.summary.at("held_out_loss"), alone.summary.at("held_out_loss"), 1e-4);
  }
}

// The same in double precision, where rounding leaves no room for a wrong average that happens to be small.
TEST_F(CharLm, CurvesAgreeToRoundingInDoublePrecision) {
  const Arguments options{"--steps", "40", "--dtype", "f64"};
  EXPECT_LT(largest_difference(learn(2, options).losses, learn(1, options).losses), 1e-10);
}

TEST_F(CharLm, SameSeedGivesTheSameBits) {
  const Arguments options{"--steps", "40", "--seed", "5"};
  const Curve first = learn(2, options);
  const Curve second = learn(2, options);
  EXPECT_EQ(first.losses, second.losses);
  EXPECT_EQ(first.summary.at("held_out_loss"), second.summary.at("held_out_loss"));
  EXPECT_EQ(first.summary.at("parameter_hash"), second.summary.at("parameter_hash"));
  EXPECT_EQ(first.summary.at("sample"), second.summary.at("sample"));
  const Curve other = learn(2, {"--steps", "40", "--seed", "6"});
  EXPECT_NE(first.summary.at("parameter_hash"), other.summary.at("parameter_hash"));
}

// Where gradients lie, how buckets are cut and how many lanes run them changes no bit on two ranks.
TEST_F(CharLm, BucketsAndLanesDoNotChangeTheNumbers) {
  const Curve plain = learn(2, {"--steps", "20", "--no-gradient-as-bucket-view"});
  for (const Arguments& options : {Arguments{"--gradient-as-bucket-view"}, Arguments{"--bucket-cap-mb", "0.01"},
                                   Arguments{"--bucket-cap-mb", "0.01", "--lanes", "3"}, Arguments{"--lanes", "0"}}) {
    Arguments all{"--steps", "20"};
    all.insert(all.end(), options.begin(), options.end());
    const Curve curve = learn(2, all);
    EXPECT_EQ(curve.losses, plain.losses) << options[0];
    EXPECT_EQ(curve.summary.at("parameter_hash"), plain.summary.at("parameter_hash")) << options[0];
  }
}

// Other launchers, over the same engine or over their own with several lanes of it: the same bits.
TEST_F(CharLm, LearnsTheSameUnderMpirun) {
  if (std::string(CHAR_LM_MPIRUN).empty()) GTEST_SKIP() << "gradwire was built without MPI";
  // OpenMPI leaves a folder of its own behind.
  const std::string folder = scratch("mpi");
  std::filesystem::create_directory(folder);
  const auto mpirun = [&](const std::string& ranks) {
    return Arguments{"env",
                     "OMPI_ALLOW_RUN_AS_ROOT=1",
                     "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1",
                     "TMPDIR=" + folder,
                     CHAR_LM_MPIRUN,
                     "--oversubscribe",
                     "--bind-to",
                     "none",
                     "-n",
                     ranks};
  };
  expect_same("3", "shm", mpirun("3"), {"--steps", "20", "--batch", "9"});
  expect_same("4", "mpi", mpirun("4"),
              {"--steps", "20", "--bucket-cap-mb", "0.01", "--lanes", "2", "--backend", "mpi"});
}

TEST_F(CharLm, LearnsTheSameUnderTorchrun) {
  if (!std::filesystem::exists(CHAR_LM_TORCHRUN)) GTEST_SKIP() << "there is no torchrun";
  // It leaves a folder of its own behind.
  const std::string folder = scratch("torchrun");
  std::filesystem::create_directory(folder);
  expect_same("3", "shm",
              {"env", "TMPDIR=" + folder, CHAR_LM_TORCHRUN, "--standalone", "--nproc-per-node", "3", "--no-python"},
              {"--steps", "20", "--batch", "9"});
}

TEST_F(CharLm, LearnsAndSaysSo) {
  const Curve curve = learn(2, {"--steps", "100", "--lr", "0.01"});
  EXPECT_LT(curve.losses.back(), 0.7 * curve.losses.front());
  EXPECT_LT(curve.summary.at("held_out_loss"), 0.7 * curve.losses.front());
  EXPECT_EQ(curve.summary.at("sample").get<std::string>().size(), 20U);
  EXPECT_EQ(curve.summary.at("world_size"), 2);
  EXPECT_EQ(curve.summary.at("backend"), "shm");
  // Every gradient, four bytes each, once a step.
  EXPECT_EQ(curve.summary.at("bytes_per_step"), 4 * curve.summary.at("parameters").get<std::int64_t>());
  const std::string agreement =
      "parameters agree on all ranks: " + curve.summary.at("parameter_hash").get<std::string>();
  for (const std::string& part :
       {agreement, std::string("held-out loss"), std::string("step   100/100"), std::string("tokens/s")}) {
    EXPECT_NE(output_.find(part), std::string::npos) << part << " is not in\n" << output_;
  }
  EXPECT_EQ(output_.find("[rank 1]"), std::string::npos) << "only rank 0 speaks\n" << output_;
}

TEST_F(CharLm, WorksWithoutALauncher) {
  const Curve curve = learn(0, {"--steps", "5"});
  EXPECT_EQ(curve.losses.size(), 5U);
  EXPECT_EQ(curve.summary.at("world_size"), 1);
  EXPECT_EQ(curve.summary.at("bytes_per_step"), 0);
  EXPECT_EQ(curve.losses, learn(1, {"--steps", "5"}).losses);
}

TEST_F(CharLm, HooksDoWhatTheirNamesSay) {
  const Curve plain = learn(2, {"--steps", "30"});
  for (const char* hook : {"fp16_compress", "bf16_compress"}) {
    const Curve curve = learn(2, {"--steps", "30", "--hook", hook});
    EXPECT_EQ(2 * curve.summary.at("bytes_per_step").get<double>(), plain.summary.at("bytes_per_step")) << hook;
    EXPECT_NE(curve.losses, plain.losses) << hook << " rounds nothing?";
    EXPECT_LT(largest_difference(curve.losses, plain.losses), 0.1) << hook;
  }
  // Any name of the registry, with options; the summary says what it saved.
  for (const char* hook : {"int8", "quantize_per_channel", "power_sgd:rank=2,start=3,min_rate=1",
                           "top_k:ratio=0.05,memory=ef21,min=256", "sign_sgd", "fp8_e4m3:wrap=bf16,warm_up=2"}) {
    const Curve curve = learn(2, {"--steps", "10", "--hook", hook});
    const double sent = curve.summary.at("bytes_per_step");
    EXPECT_LT(sent, plain.summary.at("bytes_per_step").get<double>()) << hook;
    EXPECT_NEAR(curve.summary.at("compression_factor"), plain.summary.at("bytes_per_step").get<double>() / sent, 1e-9);
    EXPECT_GT(curve.summary.at("hook_seconds_per_step"), 0) << hook;
    EXPECT_NE(curve.summary.at("parameter_hash"), "") << hook;
    for (const char* row : {"sent a step", "compression  ", "in the hook"}) {
      EXPECT_NE(output_.find(row), std::string::npos) << row << " is not in\n" << output_;
    }
  }
  EXPECT_DOUBLE_EQ(plain.summary.at("compression_factor"), 1);
  const Curve apart = learn(2, {"--steps", "5", "--hook", "noop"});
  EXPECT_EQ(apart.summary.at("parameter_hash"), "");
  EXPECT_NE(output_.find("parameters differ"), std::string::npos) << output_;
}

// Where a step's time went: every bucket once, within the backward pass, with the collectives of its hook; the parts
// are the step.
TEST_F(CharLm, TimelinesAddUp) {
  struct Case {
    std::string hook, lanes;
    std::optional<std::size_t> calls;  // of collectives a bucket; unset: more than one
  };
  for (const Case& each : {Case{"allreduce", "2", 1}, Case{"power_sgd:start=2,min_rate=1", "1", std::nullopt},
                           Case{"fp16_compress", "0", 1}, Case{"noop", "2", 0}}) {
    const Curve curve =
        learn(2, {"--steps", "4", "--bucket-cap-mb", "0.01", "--hook", each.hook, "--lanes", each.lanes});
    ASSERT_EQ(curve.timelines.size(), 4U) << each.hook;
    for (std::size_t step = 2; step < 4; ++step) {  // the buckets are final, PowerSGD has started
      const Json& line = curve.timelines[step];
      const double seconds = line.at("seconds");
      double parts = 0;
      for (const double part : curve.splits[step]) {
        EXPECT_GE(part, 0) << each.hook;
        parts += part;
      }
      EXPECT_NEAR(parts, seconds, 1e-9 * seconds) << each.hook;
      EXPECT_LE(line.at("forward")[1], line.at("backward")[0]);
      EXPECT_EQ(line.at("wait")[1], line.at("backward")[1]);
      EXPECT_LE(line.at("optimizer")[1], seconds);
      std::int64_t bytes = 0;
      std::size_t calls = 0;
      double latest = line.at("backward")[0];
      ASSERT_GT(line.at("buckets").size(), 2U);
      for (const Json& bucket : line.at("buckets")) {
        bytes += bucket.at("bytes").get<std::int64_t>();
        calls += bucket.at("calls").size();
        EXPECT_LE(latest, bucket.at("ready")) << "buckets are launched in order";
        latest = bucket.at("ready");
        EXPECT_LE(bucket.at("ready"), bucket.at("hook")[0]);
        EXPECT_LE(bucket.at("hook")[1], line.at("wait")[1]);
        for (const Json& call : bucket.at("calls")) {
          EXPECT_LE(bucket.at("hook")[0], call[0]);
          EXPECT_LT(call[0], call[1]);
          EXPECT_LE(call[1], bucket.at("hook")[1]);
        }
      }
      EXPECT_EQ(bytes, 4 * curve.summary.at("parameters").get<std::int64_t>()) << each.hook;
      const std::size_t buckets = line.at("buckets").size();
      if (each.calls) {
        EXPECT_EQ(calls, *each.calls * buckets) << each.hook;
      } else {
        EXPECT_GT(calls, buckets) << each.hook;
      }
    }
  }
}

TEST_F(CharLm, SgdLearnsAndResumes) {
  const Arguments options{"--optimizer", "sgd", "--lr", "0.1"};
  const auto with = [&](Arguments more) {
    more.insert(more.end(), options.begin(), options.end());
    return more;
  };
  const Curve whole = learn(2, with({"--steps", "60"}));
  EXPECT_LT(whole.losses.back(), 0.8 * whole.losses.front());
  learn(2, with({"--steps", "30", "--save", scratch("half")}));
  const Curve rest = learn(2, with({"--steps", "60", "--resume", scratch("half")}));
  EXPECT_EQ(rest.summary.at("parameter_hash"), whole.summary.at("parameter_hash"));
}

TEST_F(CharLm, HalfPrecisionParametersLearn) {
  const Curve curve = learn(2, {"--steps", "60", "--dtype", "bf16", "--lr", "0.01"});
  EXPECT_LT(curve.losses.back(), 0.8 * curve.losses.front());
}

// Stopping and going on leaves no trace in the numbers, on as many ranks as before and on others.
TEST_F(CharLm, ResumedRunIsTheUninterruptedOne) {
  const Curve whole = learn(2, {"--steps", "60"});
  learn(2, {"--steps", "30", "--save", scratch("half")});
  const Curve rest = learn(2, {"--steps", "60", "--resume", scratch("half")});
  EXPECT_EQ(rest.steps.front(), 31);
  EXPECT_EQ(rest.losses, std::vector<double>(whole.losses.begin() + 30, whole.losses.end()));
  EXPECT_EQ(rest.summary.at("parameter_hash"), whole.summary.at("parameter_hash"));
  const Curve alone = learn(1, {"--steps", "60", "--resume", scratch("half")});
  EXPECT_LT(largest_difference(alone.losses, rest.losses), 1e-4);
}

// The same with hooks that remember, of whose memory nothing may be lost: each rank's own comes back to it.
TEST_F(CharLm, ResumedRunHasTheHooksMemory) {
  for (const std::string hook : {"one_bit:warm_up=35", "power_sgd:rank=2,start=10,min_rate=1", "int4:memory=ef21"}) {
    const Arguments options{"--hook", hook, "--bucket-cap-mb", "0.01"};
    const auto with = [&](Arguments more) {
      more.insert(more.end(), options.begin(), options.end());
      return more;
    };
    const Curve whole = learn(2, with({"--steps", "60"}));
    learn(2, with({"--steps", "30", "--save", scratch("half")}));
    const Curve rest = learn(2, with({"--steps", "60", "--resume", scratch("half")}));
    EXPECT_EQ(rest.losses, std::vector<double>(whole.losses.begin() + 30, whole.losses.end())) << hook;
    EXPECT_EQ(rest.summary.at("parameter_hash"), whole.summary.at("parameter_hash")) << hook;
    EXPECT_EQ(output_.find("empty memory"), std::string::npos) << output_;
    // On other ranks the numbers differ, but training goes on from where it was, and the ranks agree.
    for (const int ranks : {1, 4}) {
      const Curve other = learn(ranks, with({"--steps", "60", "--resume", scratch("half")}));
      EXPECT_NE(other.summary.at("parameter_hash"), "") << hook;
      EXPECT_LT(largest_difference(other.losses, rest.losses), 0.15) << hook << " on " << ranks;
    }
  }
  EXPECT_NE(output_.find("the mean of what the hook remembered on 2 ranks"), std::string::npos) << output_;
  const Curve changed = learn(2, {"--steps", "40", "--hook", "int8", "--resume", scratch("half")});
  EXPECT_NE(output_.find("saved under the hook int4:memory=ef21; int8 begins with an empty memory"), std::string::npos)
      << output_;
}

TEST_F(CharLm, CheckpointThatDoesNotFitIsRefused) {
  learn(1, {"--steps", "2", "--save", scratch("saved")});
  std::ofstream(scratch("other")) << std::string(1000, 'x');
  std::ofstream(scratch("junk")) << "no archive";
  struct Case {
    Arguments arguments;
    std::string says;
  };
  for (const Case& wrong :
       {Case{{"--resume", scratch("saved"), "--width", "64"}, "--width 32, not --width 64"},
        Case{{"--resume", scratch("saved"), "--layers", "2"}, "--layers 1, not --layers 2"},
        Case{{"--resume", scratch("saved"), "--dtype", "f64"}, "--dtype f32, not --dtype f64"},
        Case{{"--resume", scratch("saved"), "--text", scratch("other")}, "other characters"},
        Case{{"--resume", scratch("saved"), "--steps", "2"}, "at step 2 already"},
        Case{{"--resume", scratch("junk")}, "no checkpoint"}, Case{{"--resume", scratch("none")}, "does not exist"}}) {
    const Result result = run_alone(tiny(wrong.arguments));
    EXPECT_EQ(result.exit_code, 2) << wrong.says;
    EXPECT_NE(result.err.find(wrong.says), std::string::npos) << result.err;
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
  }
}

struct BadRun {
  std::string name;
  Arguments arguments;
  std::string says;
};
void PrintTo(const BadRun& bad, std::ostream* out) { *out << bad.name; }

class CharLmBadInput : public CharLm, public testing::WithParamInterface<BadRun> {};

// Each mistake ends the job with code 2 and the same sentence from every rank that got to say it, with nothing hanging.
TEST_P(CharLmBadInput, EndsWithOneSentence) {
  std::ofstream(scratch("empty"));
  std::ofstream(scratch("short")) << "too short a text";
  Arguments arguments = tiny({});
  for (const std::string& argument : GetParam().arguments) {
    arguments.push_back(argument[0] == '@' ? scratch(argument.substr(1)) : argument);
  }
  const Result result = run_ranks(2, arguments);
  EXPECT_EQ(result.exit_code, 2) << result.err;
  EXPECT_NE(result.err.find("char_lm: "), std::string::npos) << result.err;
  EXPECT_NE(result.err.find(GetParam().says), std::string::npos) << result.err;
  EXPECT_EQ(result.err.find("Exception raised from"), std::string::npos) << "a stack dump:\n" << result.err;
  EXPECT_EQ(result.out.find("step"), std::string::npos) << result.out;
}

INSTANTIATE_TEST_SUITE_P(
    Table, CharLmBadInput,
    testing::Values(BadRun{"MissingText", {"--text", "/nonexistent/text"}, "the text /nonexistent/text does not exist"},
                    BadRun{"EmptyText", {"--text", "@empty"}, "is empty"},
                    BadRun{"ShortText", {"--text", "@short"}, "needs at least 170"},
                    BadRun{"BatchNotShared", {"--batch", "7"}, "--batch 7 cannot be shared evenly by 2 ranks"},
                    BadRun{"UnknownHook", {"--hook", "telepathy"}, "telepathy"},
                    BadRun{"UnknownBackend", {"--backend", "pigeons"}, "pigeons"},
                    BadRun{"UnknownOption", {"--colour", "red"}, "--colour"},
                    BadRun{"BadNumber", {"--layers", "many"}, "--layers"},
                    BadRun{"TooManyLanes", {"--lanes", "9"}, "--lanes"}),
    [](const auto& info) { return info.param.name; });

// The process that runs as rank `rank`, out of `candidates`; -1 when none does.
pid_t process_of_rank(const std::vector<pid_t>& candidates, int rank) {
  for (const pid_t pid : candidates) {
    // Entries end with a zero byte, so this finds no other rank and no other variable.
    const std::string environment = gradwire::launch::read_file(concat("/proc/", pid, "/environ"));
    const std::string program = gradwire::launch::read_file(concat("/proc/", pid, "/cmdline"));
    if (('\0' + environment).find(concat('\0', "RANK=", rank, '\0')) != std::string::npos &&
        program.starts_with(CHAR_LM_PROGRAM)) {
      return pid;
    }
  }
  return -1;
}

TEST_F(CharLm, SurvivorSaysWhoDied) {
  Arguments all{"-n", "2"};
  const Arguments command = tiny({"--steps", "1000000"});
  all.insert(all.end(), command.begin(), command.end());
  start(all);
  wait_for_output("step    10/");
  const pid_t victim = process_of_rank(marked_processes(), 1);
  ASSERT_GT(victim, 0);
  kill(victim, SIGKILL);
  const Result result = finish();
  EXPECT_NE(result.exit_code, 0);
  EXPECT_NE(result.err.find("[rank 0] char_lm: "), std::string::npos) << result.err;
  EXPECT_NE(result.err.find("rank 1"), std::string::npos) << result.err;
  EXPECT_EQ(result.err.find("Exception raised from"), std::string::npos) << "a stack dump:\n" << result.err;
}

// A rank dies after the first checkpoint: the job starts again, goes on from it, and ends as if nothing had happened,
// with what the hook remembered too.
TEST_F(CharLm, AJobThatIsStartedAgainGoesOnFromItsCheckpoint) {
  const Arguments options{"--steps", "400", "--hook", "one_bit:warm_up=20", "--checkpoint-every", "100"};
  const Curve whole = learn(2, options);
  Arguments all{"-n", "2", "--max-restarts", "1"};
  for (const std::string& word : tiny(options)) all.push_back(word);
  all.insert(all.end(), {"--checkpoint", scratch("checkpoint"), "--json", scratch("again.json")});
  start(all);
  wait_for_output("checkpoint of step 100 written");
  const pid_t victim = process_of_rank(marked_processes(), 1);
  ASSERT_GT(victim, 0);
  kill(victim, SIGKILL);
  const Result result = finish();
  EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
  EXPECT_NE(result.err.find("all ranks start again (restart 1 of 1)"), std::string::npos) << result.err;
  const Curve again = read_curve(scratch("again.json"));
  ASSERT_FALSE(again.steps.empty());
  EXPECT_EQ(again.steps.front() % 100, 1) << "the step after a checkpoint";
  EXPECT_GT(again.steps.front(), 1);
  EXPECT_EQ(again.losses, std::vector<double>(whole.losses.begin() + (again.steps.front() - 1), whole.losses.end()));
  EXPECT_EQ(again.summary.at("parameter_hash"), whole.summary.at("parameter_hash"));
}

// A job that is told to end does so at once, in the middle of training.
TEST_F(CharLm, EndsPromptlyOnSigterm) {
  Arguments all{"-n", "2"};
  const Arguments command = tiny({"--steps", "1000000"});
  all.insert(all.end(), command.begin(), command.end());
  start(all);
  wait_for_output("step    10/");
  signal_launcher(SIGTERM);
  EXPECT_NE(finish().exit_code, 0);
}

}  // namespace
}  // namespace char_lm
