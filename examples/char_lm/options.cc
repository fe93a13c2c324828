// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "examples/char_lm/options.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>

#include "examples/char_lm/errors.h"
#include "gradwire/base/strings.h"
#include "gradwire/hooks/registry.h"

namespace char_lm {
namespace {

using gradwire::concat;

constexpr int kMaxSize = 1 << 20;

// CLI11 reads "-1" into an unsigned number without a word.
std::string no_minus(const std::string& value) {
  return value.find('-') == std::string::npos ? "" : value + " is negative";
}

void add_model_options(CLI::App& app, Options& options) {
  app.add_option("--text", options.text, "File to learn (default: the texts in /usr/share/common-licenses)");
  app.add_option("--layers", options.layers, "Transformer layers")->check(CLI::Range(1, 1000))->capture_default_str();
  app.add_option("--width", options.width, "Width of the model, a multiple of --heads")
      ->check(CLI::Range(1, kMaxSize))
      ->capture_default_str();
  app.add_option("--heads", options.heads, "Attention heads")->check(CLI::Range(1, kMaxSize))->capture_default_str();
  app.add_option("--context", options.context, "Characters the model sees at once")
      ->check(CLI::Range(1, kMaxSize))
      ->capture_default_str();
  app.add_option("--dtype", options.dtype, "Of parameters and activations: f32, f64 or bf16")
      ->check(CLI::IsMember({"f32", "f64", "bf16"}))
      ->capture_default_str();
}

void add_training_options(CLI::App& app, Options& options) {
  app.add_option("--batch", options.batch, "Samples a step, over all ranks together")
      ->check(CLI::Range(1, kMaxSize))
      ->capture_default_str();
  app.add_option("--steps", options.steps, "Steps in all, those before --resume included")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 40))
      ->capture_default_str();
  app.add_option("--optimizer", options.optimizer, "adamw, or sgd with a momentum of 0.9 (which wants a larger --lr)")
      ->check(CLI::IsMember({"adamw", "sgd"}))
      ->capture_default_str();
  app.add_option("--lr", options.lr, "Learning rate")->capture_default_str();
  app.add_option("--seed", options.seed, "Chooses initial weights, samples and generated text")
      ->check(no_minus)
      ->capture_default_str();
  app.add_option("--save", options.save, "Write a checkpoint here at the end");
  auto* resume =
      app.add_option("--resume", options.resume, "Go on from a checkpoint that --save or --checkpoint wrote");
  app.add_option(
         "--checkpoint", options.checkpoint,
         "Go on from this checkpoint if it is there, and write it every --checkpoint-every steps: for jobs that "
         "are started again (gradwire-run --max-restarts)")
      ->excludes(resume);
  app.add_option("--checkpoint-every", options.checkpoint_every, "Steps between two checkpoints")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 40))
      ->capture_default_str();
}

void add_gradwire_options(CLI::App& app, Options& options) {
  app.add_option("--hook", options.hook,
                 gradwire::concat("Communication hook with its options, as in power_sgd:rank=4,start=10; one of: ",
                                  gradwire::join(gradwire::hook_names(), ", "),
                                  " (gradwire-bench hooks --list says what each does)"))
      ->capture_default_str();
  app.add_option("--backend", options.backend, "What moves the gradients, by name: auto, shm, ...")
      ->capture_default_str();
  app.add_option("--lanes", options.lanes, "Threads that run the hook, 0 to 8 (default: chosen by DDP)")
      ->check(CLI::Range(0, 8));
  app.add_option("--bucket-cap-mb", options.bucket_cap_mb, "Size of gradient buckets in MiB (default: chosen by DDP)");
  app.add_flag("--gradient-as-bucket-view,!--no-gradient-as-bucket-view", options.gradient_as_bucket_view,
               "Gradients live in the buckets (default) or are copied there");
  app.add_option("--threads", options.threads, "Threads a rank computes with (0: cores / ranks on this host)")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
}

void add_output_options(CLI::App& app, Options& options) {
  app.add_option("--json", options.json, "Write one JSON line a logged step and a summary line to this file");
  app.add_option("--log-every", options.log_every, "Steps between two lines")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 40))
      ->capture_default_str();
  app.add_option("--generate", options.generate, "Characters of sample text at the end")
      ->check(CLI::Range(0, kMaxSize))
      ->capture_default_str();
  app.add_option("--eval-batches", options.eval_batches, "Batches of held-out text at the end")
      ->check(CLI::Range(1, kMaxSize))
      ->capture_default_str();
}

// Found out now rather than after an hour of training.
void require_writable(const std::string& option, const std::string& file) {
  if (file.empty()) {
    return;
  }
  const std::filesystem::path path(file);
  const std::filesystem::path folder = path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) {
    throw UserError(concat(option, " names the folder ", file, "; give it the name of a file"));
  }
  if (!std::filesystem::is_directory(folder, ignored)) {
    throw UserError(concat(option, " ", file, ": the folder ", folder.string(), " does not exist"));
  }
  if (std::filesystem::exists(path, ignored) && access(path.c_str(), W_OK) != 0) {
    throw UserError(concat(option, " ", file, ": the file is not writable"));
  }
  if (access(folder.c_str(), W_OK | X_OK) != 0) {
    throw UserError(concat(option, " ", file, ": the folder ", folder.string(), " is not writable"));
  }
}

void check(const Options& options, const CLI::App& app) {
  if (app.count("--text") > 0 && options.text.empty()) {
    throw UserError("--text needs the name of a file");
  }
  if (options.width % options.heads != 0) {
    throw UserError(concat("--width ", options.width, " is no multiple of --heads ", options.heads));
  }
  if (!std::isfinite(options.lr) || options.lr <= 0) {
    throw UserError(concat("--lr must be a positive number, not ", options.lr));
  }
  if (options.bucket_cap_mb && !(std::isfinite(*options.bucket_cap_mb) && *options.bucket_cap_mb > 0)) {
    throw UserError(concat("--bucket-cap-mb must be a positive number, not ", *options.bucket_cap_mb));
  }
  require_writable("--save", options.save);
  require_writable("--checkpoint", options.checkpoint);
  require_writable("--json", options.json);
}

// CLI11's messages may run over several lines; ours are one sentence.
std::string one_line(std::string message) {
  std::replace(message.begin(), message.end(), '\n', ' ');
  return message;
}

}  // namespace

Options parse_options(const std::vector<std::string>& arguments) {
  Options options;
  CLI::App app(
      "Trains a character transformer on a text, data-parallel over the ranks that gradwire-run starts\n"
      "(gradwire-run -n 2 char_lm), or alone when started without it.",
      "char_lm");
  // As on other command lines, the last word counts.
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  add_model_options(app, options);
  add_training_options(app, options);
  add_gradwire_options(app, options);
  add_output_options(app, options);
  try {
    // CLI11 takes a vector back to front.
    app.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));
  } catch (const CLI::CallForHelp&) {
    throw HelpRequest{app.help()};
  } catch (const CLI::ParseError& error) {
    throw UserError(concat(one_line(error.what()), " (char_lm --help lists the options)"));
  }
  check(options, app);
  return options;
}

}  // namespace char_lm
