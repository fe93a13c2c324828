// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// What optimizers in DDP's backward pass cannot go with.
#pragma once

#include <string_view>

#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "gradwire/ddp/distributed_data_parallel.h"

namespace gradwire::internal {

// Throws UnsupportedError for mixed precision: in the backward pass neither parameters nor buckets need have the type
// that the parameters have for the optimizer.
inline void require_full_precision(std::string_view who, const DdpCore& ddp) {
  if (!ddp.options().mixed_precision) return;
  throw UnsupportedError(concat(who,
                                ": this DistributedDataParallel has mixed_precision, with which parameters cannot "
                                "step in the backward pass. Step after it, with the optimizer itself or a "
                                "ZeroRedundancyOptimizer."));
}

}  // namespace gradwire::internal
