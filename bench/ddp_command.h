// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// gradwire-bench ddp: measures the time that DistributedDataParallel adds to a training step, and the same for
// PyTorch's DDP over Gloo in the same run.
#pragma once

#include <string>

#include "bench/local_ranks.h"

namespace gradwire::bench {

struct DdpCommandOptions {
  std::string backend = "shm";
  int world = 2;
  int batch = 32;  // samples of a rank
  int lanes = -1;
  double bucket_cap_mb = 0;       // 0: DDP's own
  std::string optimizer = "sgd";  // see TrainingWorkerOptions
  int rounds = 20;                // pairs of blocks
  int steps = 10;                 // in a block
  bool peers = false;
  bool apart = false;     // each variant in processes of its own, as in a program that trains one model
  bool recorder = false;  // measure what the step recorder adds to a step with DDP, and nothing else
  bool json = false;
  bool pin = true;
  std::string python;
};

// Measures and prints. Throws std::runtime_error and InvalidArgument, and UnsupportedError in a build without torch.
void run_ddp(const DdpCommandOptions& options);

struct TrainingWorkerOptions : RankOptions {
  std::string contestant = "gradwire";
  int batch = 32;
  int lanes = -1;
  double bucket_cap_mb = 0;
  std::string optimizer = "sgd";  // or "momentum" (SGD with a momentum of 0.9), "adam", "adamw"
};

// One rank of the training contestant. Variants: "alone" (no DDP), "meet" (no DDP, but a barrier after the backward
// pass, so that the ranks wait for each other as they do with DDP), "view" and "copy" (DDP with and without
// gradient_as_bucket_view), "fused" ("view" with make_fused_zero_hook()), which call zero_grad(set_to_none=False); and
// the same with "/none" for set_to_none=True. With "/recorded" behind, the step recorder records the steps of the same
// trainer; GRADWIRE_RECORD names where.
void run_training_worker(const TrainingWorkerOptions& options);

}  // namespace gradwire::bench
