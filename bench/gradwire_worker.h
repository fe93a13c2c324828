// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// gradwire's contestants: ranks over a gradwire backend, measured at the Backend, through the code path that ships.
#pragma once

#include <string>

#include "bench/local_ranks.h"
#include "gradwire/base/dtype.h"
#include "gradwire/base/reduce_op.h"

namespace gradwire::bench {

struct WorkerOptions : RankOptions {
  std::string contestant;
  DType dtype = DType::f32;
  ReduceOp op = ReduceOp::sum();
};

// Serves as rank `rank` (backend shm), or as all ranks, each on a thread (backend threads).
void run_gradwire_worker(const WorkerOptions& options);

}  // namespace gradwire::bench
