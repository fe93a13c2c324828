// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The command line of char_lm.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace char_lm {

struct Options {
  // Options that change the numbers of the training.
  std::string text;  // a file; empty: the licence texts in /usr/share/common-licenses
  int layers = 2;
  int width = 128;  // of the residual stream; a multiple of `heads`
  int heads = 4;
  int context = 64;  // characters the model sees at once
  int batch = 32;    // samples of a step, over all ranks together
  std::int64_t steps = 800;
  std::string optimizer = "adamw";  // or "sgd", with momentum
  double lr = 3e-3;
  std::uint64_t seed = 1;
  std::string hook = "allreduce";
  std::string dtype = "f32";
  std::string resume;

  // Options of the execution.
  std::string backend = "auto";
  std::optional<int> lanes;             // threads that run the hook; unset: DDP chooses
  std::optional<double> bucket_cap_mb;  // unset: DDP's default
  bool gradient_as_bucket_view = true;
  int threads = 0;  // of libtorch in each rank; 0: the cores divided by the ranks of this host

  // Options of the output.
  std::string save;
  std::string checkpoint;  // written regularly; a run continues from this file if it exists, so `resume` is not needed
  std::int64_t checkpoint_every = 100;
  std::string json;
  std::int64_t log_every = 25;
  int generate = 400;    // characters of sample text
  int eval_batches = 8;  // batches of held-out text at the end
};

// Thrown by parse_options() when the user asked for the help text.
struct HelpRequest {
  std::string text;
};

// Reads the command line, and makes all checks that need no other rank. Throws UserError with one sentence, and
// HelpRequest for --help.
Options parse_options(const std::vector<std::string>& arguments);

}  // namespace char_lm
