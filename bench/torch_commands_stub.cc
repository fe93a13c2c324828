// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Replaces the commands collectives, ddp and hooks, and their workers, in a build without torch.
#include "bench/collectives_command.h"
#include "bench/ddp_command.h"
#include "bench/hooks_command.h"
#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"

namespace gradwire::bench {
namespace {

[[noreturn]] void refuse(const char* command) {
  throw UnsupportedError(concat("this gradwire-bench was built without torch (GRADWIRE_TORCH=OFF), which the command ",
                                command, " needs"));
}

}  // namespace

void run_collectives(const CollectivesCommandOptions& /*options*/) { refuse("collectives"); }
void run_collective_worker(const RankOptions& /*options*/) { refuse("collectives"); }
void run_ddp(const DdpCommandOptions& /*options*/) { refuse("ddp"); }
void run_training_worker(const TrainingWorkerOptions& /*options*/) { refuse("ddp"); }
void run_hooks(const HooksCommandOptions& /*options*/) { refuse("hooks"); }
void list_hooks(bool /*json*/) { refuse("hooks"); }
void run_hook_worker(const RankOptions& /*options*/) { refuse("hooks"); }

}  // namespace gradwire::bench
