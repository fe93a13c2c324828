// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Converts between c10d's reductions and gradwire's.
#pragma once

#include <torch/csrc/distributed/c10d/Types.hpp>

#include "gradwire/base/reduce_op.h"

namespace gradwire::internal {

// Throws InvalidArgument for an operation without a meaning (UNUSED, PREMUL_SUM without its factor).
ReduceOp reduce_op_from_c10d(const c10d::ReduceOp& op);

c10d::ReduceOp reduce_op_to_c10d(ReduceOp op);

}  // namespace gradwire::internal
