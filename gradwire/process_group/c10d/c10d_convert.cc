// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include <ATen/Functions.h>

#include "gradwire/base/error.h"
#include "gradwire/process_group/c10d/c10d_convert_internal.h"

namespace gradwire::internal {

ReduceOp reduce_op_from_c10d(const c10d::ReduceOp& op) {
  using Kind = c10d::ReduceOp::RedOpType;
  switch (op.op_) {
    case Kind::SUM:
      return ReduceOp::sum();
    case Kind::AVG:
      return ReduceOp::avg();
    case Kind::PRODUCT:
      return ReduceOp::product();
    case Kind::MIN:
      return ReduceOp::min();
    case Kind::MAX:
      return ReduceOp::max();
    case Kind::BAND:
      return ReduceOp::band();
    case Kind::BOR:
      return ReduceOp::bor();
    case Kind::BXOR:
      return ReduceOp::bxor();
    case Kind::PREMUL_SUM: {
      const auto* factor = dynamic_cast<const c10d::NCCLPreMulSumSupplement*>(op.supplement_.get());
      if (factor == nullptr) throw InvalidArgument("a PREMUL_SUM without its factor");
      return ReduceOp::premul_sum(factor->tensor_factor.defined() ? factor->tensor_factor.item<double>()
                                                                  : factor->double_factor);
    }
    case Kind::UNUSED:
      break;
  }
  throw InvalidArgument("a reduction that is none (c10d's UNUSED)");
}

c10d::ReduceOp reduce_op_to_c10d(ReduceOp op) {
  if (op.kind == ReduceOp::Kind::premul_sum) {
    // The function that makes one has another name in torch 2.11; the supplement has kept this one.
    c10d::ReduceOp made;
    made.op_ = c10d::ReduceOp::PREMUL_SUM;
    made.supplement_ = c10::make_intrusive<c10d::NCCLPreMulSumSupplement>(op.factor);
    return made;
  }
  switch (op.kind) {
    case ReduceOp::Kind::avg:
      return c10d::ReduceOp::AVG;
    case ReduceOp::Kind::product:
      return c10d::ReduceOp::PRODUCT;
    case ReduceOp::Kind::min:
      return c10d::ReduceOp::MIN;
    case ReduceOp::Kind::max:
      return c10d::ReduceOp::MAX;
    case ReduceOp::Kind::band:
      return c10d::ReduceOp::BAND;
    case ReduceOp::Kind::bor:
      return c10d::ReduceOp::BOR;
    case ReduceOp::Kind::bxor:
      return c10d::ReduceOp::BXOR;
    default:
      return c10d::ReduceOp::SUM;
  }
}

}  // namespace gradwire::internal
