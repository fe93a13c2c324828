// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// What stands for ddp_command.cc in a build without torch.
#include "bench/ddp_command.h"
#include "gradwire/base/error.h"

namespace gradwire::bench {

void run_ddp(const DdpCommandOptions& /*options*/) {
  throw UnsupportedError(
      "this gradwire-bench was built without torch (GRADWIRE_TORCH=OFF), which the command ddp needs");
}

void run_training_worker(const TrainingWorkerOptions& /*options*/) { run_ddp({}); }

}  // namespace gradwire::bench
