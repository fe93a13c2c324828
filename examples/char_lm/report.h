// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The output of the program during training: on stdout for people, in --json FILE for programs. Only rank 0 writes.
#pragma once

#include <chrono>
#include <cstdint>
#include <fstream>
#include <string>

#include "examples/char_lm/options.h"
#include "gradwire/observe/step_times.h"

namespace char_lm {

struct RunFacts {
  std::string source;  // of the text
  std::size_t train_characters = 0;
  std::size_t held_out_characters = 0;
  int vocabulary = 0;
  std::int64_t parameters = 0;
  std::int64_t parameter_bytes = 0;
  int world = 1;
  int threads = 1;
  std::string backend;          // the group's backend, also when --backend is "auto"
  std::int64_t first_step = 0;  // the number of steps of the checkpoint from which this run continues
  std::string remark;           // a sentence for the user about the resumed state; may be empty
};

// The time of the thread that trains, in seconds, as gradwire::observe::Split has it.
struct Split {
  double compute = 0;
  double communication = 0;
  double hook = 0;
};

// The speed over some steps.
struct Pace {
  double steps_per_second = 0;
  double communication_share = 0;  // the part of the time that is communication, 0 to 1
  double bytes_per_step = 0;       // sent by this rank
  double hook_seconds_per_step = 0;
  Split split;  // for one step
};

struct Summary {
  double seconds = 0;  // of the training steps
  Pace pace;           // over the whole run
  double train_loss = 0;
  double held_out_loss = 0;
  std::string parameter_hash;  // empty when the ranks differ, as under the hook noop
  std::string sample;
};

class Report {
 public:
  // `speaks`: whether this rank is rank 0. Throws UserError when the JSON file cannot be opened.
  Report(const Options& options, const RunFacts& facts, bool speaks);

  void header();
  // Reports that step `step` (from 1) has ended. On a terminal, the progress line shows the step, a few times a second.
  void progress(std::int64_t step);
  // Reports a step's loss, averaged over the ranks, the pace since the previous call, and the times within the step.
  // Throws std::runtime_error when the JSON file cannot be written.
  void logged_step(std::int64_t step, double loss, const Pace& pace, const gradwire::observe::StepTimes& times);
  // Writes one line.
  void say(const std::string& line);
  void summary(const Summary& summary);

 private:
  void write_json(const std::string& line);
  double compression_factor(const Pace& pace) const;
  std::string line() const;
  void draw();
  void clear();
  void print_table(const Summary& summary);

  const Options& options_;
  const RunFacts& facts_;
  const bool speaks_;
  const bool live_;  // stdout is a terminal
  std::ofstream json_;
  std::int64_t step_ = 0;  // what line() shows
  double loss_ = 0;
  bool loss_known_ = false;
  std::int64_t kept_ = 0;  // the last step whose line stays
  Pace pace_;
  std::chrono::steady_clock::time_point drawn_;
};

// "1.6 MB"; decimal units.
std::string human_bytes(double bytes);

// Returns `text` with '?' in place of every byte that a terminal might interpret or not show (bytes above ASCII, and
// control bytes except line ends and tabs).
std::string printable(const std::string& text);

}  // namespace char_lm
