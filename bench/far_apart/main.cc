// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// far_apart_bench: DiLoCo between hosts with slow links, with one worker killed in each round, beside
// DistributedDataParallel over the same samples. Prints the table of docs/optim.md.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "bench/coordinator.h"
#include "bench/far_apart/jobs.h"
#include "bench/network_hosts.h"
#include "bench/statistics.h"
#include "gradwire/base/strings.h"

namespace gradwire::bench {
namespace {

constexpr int kSkipped = 77;

struct Options {
  int workers = 4;
  std::string rate = "10mbit";
  int seeds = 3;
  std::int64_t steps = 6000;
  std::int64_t inner_steps = 400;
  std::int64_t fragments = 4;
  std::int64_t overlap = 20;
  double mixing = 0.5;
  std::string hook = "int4:memory=error_feedback";
  double outer_lr = 0.9;
  double outer_momentum = 0.5;
  double lr = 3e-3;
  int batch = 32;
  int context = 64;
  int layers = 1;
  int width = 32;
  bool kill = true;
  std::int64_t ddp_steps = 40;
  std::string text;
  std::vector<std::string> methods = {"ddp", "diloco", "streaming"};
  std::string programs;
};

// The text: a file, or the sources of this project.
std::string text_of(const Options& options, const ScratchFolder& scratch) {
  if (!options.text.empty()) return options.text;
  const std::filesystem::path project = std::filesystem::path(GRADWIRE_BENCH_SOURCE_DIR).parent_path().parent_path();
  std::vector<std::string> files;
  for (const char* part :
       {"gradwire", "launch", "bench", "examples", "python/src", "python/gradwire", "tests", "docs"}) {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(project / part)) {
      const std::string kind = entry.path().extension();
      if (entry.is_regular_file() && (kind == ".cc" || kind == ".h" || kind == ".py" || kind == ".md"))
        files.push_back(entry.path());
    }
  }
  // In an order without a topic, so that the held-out end is like the rest.
  std::sort(files.begin(), files.end(), [](const std::string& one, const std::string& other) {
    return std::hash<std::string>()(one) < std::hash<std::string>()(other);
  });
  const std::string path = scratch / "text";
  std::ofstream out(path);
  for (const std::string& file : files) out << std::ifstream(file).rdbuf() << "\n";
  return path;
}

WorkerSettings settings_of(const Options& options, const std::string& text, int seed) {
  return {{"text", text},
          {"seed", std::to_string(seed)},
          {"steps", std::to_string(options.steps)},
          {"inner_steps", std::to_string(options.inner_steps)},
          {"hook", options.hook},
          {"outer_lr", std::to_string(options.outer_lr)},
          {"outer_momentum", std::to_string(options.outer_momentum)},
          {"lr", std::to_string(options.lr)},
          {"batch", std::to_string(options.batch)},
          {"context", std::to_string(options.context)},
          {"layers", std::to_string(options.layers)},
          {"width", std::to_string(options.width)}};
}

// How the workers train.
struct Method {
  std::string option;  // of --methods
  std::string name;
  WorkerSettings settings;
  bool apart = true;
};

std::vector<Method> methods_of(const Options& options) {
  std::vector<Method> methods = {
      {"ddp", "DDP, float32", {{"method", "ddp"}}, false},
      {"diloco", "DiLoCo", {{"method", "diloco"}, {"fragments", "1"}, {"overlap", "0"}, {"mixing", "0"}}},
      {"streaming",
       concat("Streaming DiLoCo, ", options.fragments, " fragments, overlap ", options.overlap),
       {{"method", "diloco"},
        {"fragments", std::to_string(options.fragments)},
        {"overlap", std::to_string(options.overlap)},
        {"mixing", std::to_string(options.mixing)}}}};
  std::erase_if(methods, [&](const Method& method) {
    return std::find(options.methods.begin(), options.methods.end(), method.option) == options.methods.end();
  });
  return methods;
}

// The results of one method.
struct Row {
  std::vector<double> losses, computing, bytes, seconds;
  int kills = 0;
};

class Bench {
 public:
  explicit Bench(const Options& options) : options_(options), text_(text_of(options, scratch_)) {}

  void run() {
    std::vector<Row> rows;
    for (const Method& method : methods_of(options_)) rows.push_back(measure(method));
    print(rows);
  }

 private:
  JobResult job(const Method& method, int seed, bool over_links, std::int64_t steps) {
    JobOptions job{.workers = options_.workers,
                   .rate = over_links ? options_.rate : "",
                   .kill_every = method.apart && options_.kill ? options_.inner_steps : 0,
                   .seed = static_cast<unsigned>(seed),
                   .programs = options_.programs,
                   .folder = scratch_ / concat("job-", ++jobs_)};
    WorkerSettings settings = settings_of(options_, text_, seed);
    for (const auto& [name, value] : method.settings) settings[name] = value;
    settings["steps"] = std::to_string(steps);
    const JobResult result = run_job(job, std::move(settings));
    std::fprintf(stderr, "%s, seed %d%s: loss %.4f, computing %.1f %%, %.0f bytes a step, %.0f s, %d killed\n",
                 method.name.c_str(), seed, over_links ? "" : ", without links", result.loss, 100 * result.computing,
                 result.bytes_a_step, result.seconds, result.kills);
    return result;
  }

  Row measure(const Method& method) {
    Row row;
    for (int seed = 1; seed <= options_.seeds; ++seed) {
      const JobResult result = job(method, seed, method.apart, options_.steps);
      row.losses.push_back(result.loss);
      row.kills += result.kills;
      if (!method.apart) continue;
      add_times(row, result);
    }
    // DDP would take hours over such links; its bytes and times are those of a few steps.
    if (!method.apart) add_times(row, job(method, 1, true, options_.ddp_steps));
    return row;
  }
  static void add_times(Row& row, const JobResult& result) {
    row.computing.push_back(result.computing);
    row.bytes.push_back(result.bytes_a_step);
    row.seconds.push_back(result.seconds);
  }

  void print(const std::vector<Row>& rows) const {
    std::printf("%d workers at %s, %s steps of %d x %d characters, %lld inner steps, %s, %d seeds\n\n",
                options_.workers, options_.rate.c_str(), std::to_string(options_.steps).c_str(), options_.batch,
                options_.context, static_cast<long long>(options_.inner_steps), options_.hook.c_str(), options_.seeds);
    std::printf(
        "| method | held-out loss, by seed | against DDP | bytes a step, all workers | fewer than DDP "
        "| time computing | workers killed |\n|---|---|---|---|---|---|---|\n");
    const auto methods = methods_of(options_);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      std::string losses;
      for (const double loss : rows[i].losses) losses += (losses.empty() ? "" : ", ") + four_digits(loss);
      const double bytes = mean_of(rows[i].bytes);
      std::printf("| %s | %s | %+.1f %% | %.0f | %.0f x | %.1f %% | %d |\n", methods[i].name.c_str(), losses.c_str(),
                  100 * (mean_of(rows[i].losses) / mean_of(rows[0].losses) - 1), bytes, mean_of(rows[0].bytes) / bytes,
                  100 * mean_of(rows[i].computing), rows[i].kills);
    }
  }
  static std::string four_digits(double value) {
    char text[32];
    std::snprintf(text, sizeof text, "%.4f", value);
    return text;
  }

  const Options& options_;
  const ScratchFolder scratch_;
  const std::string text_;
  int jobs_ = 0;
};

void add_options(CLI::App& app, Options& options) {
  const auto add = [&](const char* name, auto& value, const char* help) {
    app.add_option(name, value, help)->capture_default_str();
  };
  add("--workers", options.workers, "Number of workers, each on a host of its own");
  add("--rate", options.rate, "Of every host's link, in tc's units");
  add("--seeds", options.seeds, "Runs of each method");
  add("--steps", options.steps, "Inner steps of each worker");
  add("--inner-steps", options.inner_steps, "Steps between two exchanges of a parameter, and two kills");
  add("--fragments", options.fragments, "Of Streaming DiLoCo");
  add("--overlap", options.overlap, "Of Streaming DiLoCo, in steps");
  add("--mixing", options.mixing, "Of Streaming DiLoCo");
  add("--hook", options.hook, "For the differences");
  add("--outer-lr", options.outer_lr, "Learning rate of the outer optimizer");
  add("--outer-momentum", options.outer_momentum, "Momentum of the outer optimizer");
  add("--lr", options.lr, "Learning rate of AdamW");
  add("--batch", options.batch, "Samples a worker and step");
  add("--context", options.context, "Characters a sample");
  add("--layers", options.layers, "Of the model");
  add("--width", options.width, "Of the model");
  app.add_flag("--kill,!--no-kill", options.kill, "Kill one worker in each round (the default)");
  add("--ddp-steps", options.ddp_steps, "Steps of DDP over the links, for its bytes");
  app.add_option("--methods", options.methods, "The rows of the table; the others are measured against the first")
      ->delimiter(',')
      ->check(CLI::IsMember({"ddp", "diloco", "streaming"}))
      ->capture_default_str();
  app.add_option("--text", options.text, "A text to train on (default: the sources of this project)");
}

int run(int argc, char** argv) {
  Options options;
  options.programs = std::filesystem::read_symlink("/proc/self/exe").parent_path();
  CLI::App app("DiLoCo between hosts with slow links, beside DDP", "far_apart_bench");
  add_options(app, options);
  CLI11_PARSE(app, argc, argv);
  const std::string reason = NetworkHosts::why_not();
  if (!reason.empty()) {
    std::fprintf(stderr, "far_apart_bench: skipped: %s\n", reason.c_str());
    return kSkipped;
  }
  Bench(options).run();
  return 0;
}

}  // namespace
}  // namespace gradwire::bench

int main(int argc, char** argv) {
  try {
    return gradwire::bench::run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "far_apart_bench: %s\n", error.what());
    return 1;
  }
}
