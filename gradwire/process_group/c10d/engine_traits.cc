// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include <ATen/Functions.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include "gradwire/process_group/c10d/c10d_convert_internal.h"
#include "gradwire/process_group/c10d/engine_traits_internal.h"
#include "gradwire/process_group/dtype_internal.h"
#include "gradwire/process_group/tensor_memory_internal.h"

namespace gradwire::internal {
namespace {

bool gloo_moves(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
    case at::kDouble:
    case at::kHalf:
    case at::kBFloat16:
    case at::kByte:
    case at::kChar:
    case at::kInt:
    case at::kLong:
      return true;
    default:
      return false;
  }
}

// The same memory as bytes.
at::Tensor as_bytes(const at::Tensor& memory) {
  void* data = memory.mutable_data_ptr();
  return at::from_blob(
      data, {static_cast<std::int64_t>(memory.nbytes())}, [memory](void*) {},
      at::TensorOptions(at::kByte).device(memory.device()));
}

// A bool is a byte, 0 or 1, so reductions of bytes do: a sum of bytes would leave bytes that are no bool.
ReduceOp op_of_bytes(ReduceOp op) {
  switch (op.kind) {
    case ReduceOp::Kind::sum:
    case ReduceOp::Kind::max:
    case ReduceOp::Kind::bor:
      return ReduceOp::max();
    case ReduceOp::Kind::bxor:
      return ReduceOp::bxor();
    default:
      return ReduceOp::min();
  }
}

}  // namespace

EngineTraits traits_of(const std::string& backend_name) {
  EngineTraits traits;
  if (backend_name == "gloo") {
    traits.is_gloo = true;
    traits.serves_others = false;
  } else if (backend_name == "nccl") {
    traits.serves_cpu = false;
    traits.tells_errors = true;
  }
  return traits;
}

Prepared prepare_to_move(const EngineTraits& traits, const at::Tensor& tensor, bool reads, bool writes) {
  const at::Tensor memory = reads ? *memory_with_values(tensor) : *memory_for_results(tensor);
  Prepared prepared{memory.detach(), nullptr};
  if (writes && !memory.is_same(tensor)) prepared.bring_back = [tensor, memory] { copy_back(tensor, memory); };
  if (traits.is_gloo && !gloo_moves(tensor.scalar_type())) prepared.memory = as_bytes(memory);
  return prepared;
}

bool can_reduce(const EngineTraits& traits, at::ScalarType type, ReduceOp op) {
  const bool is_sum =
      op.kind == ReduceOp::Kind::sum || op.kind == ReduceOp::Kind::avg || op.kind == ReduceOp::Kind::premul_sum;
  return is_sum || !traits.is_gloo || !c10::isComplexType(type);
}

PreparedReduction prepare_to_reduce(const EngineTraits& traits, const at::Tensor& source, const at::Tensor& target,
                                    ReduceOp op, int ranks) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  at::Tensor memory = *memory_with_values(source);
  const bool in_place = target.defined() && memory.is_same(target);
  if (!in_place && memory.is_same(source)) memory = source.clone();  // the engine writes there
  int divisor = 1;
  if (traits.is_gloo) {
    if (op.kind == ReduceOp::Kind::premul_sum) {
      memory.mul_(op.factor);
      op = ReduceOp::sum();
    } else if (op.kind == ReduceOp::Kind::avg && divides_before_sum(memory.scalar_type())) {
      memory.div_(ranks);
      op = ReduceOp::sum();
    } else if (op.kind == ReduceOp::Kind::avg) {
      divisor = ranks;
      op = ReduceOp::sum();
    }
  }
  PreparedReduction prepared{{memory.detach(), nullptr}, c10d::ReduceOp()};
  if (traits.is_gloo && memory.scalar_type() == at::kBool) {
    prepared.tensor.memory = as_bytes(memory);
    op = op_of_bytes(op);
  } else if (traits.is_gloo && memory.is_complex()) {
    prepared.tensor.memory = at::view_as_real(memory.detach());
  }
  prepared.op = reduce_op_to_c10d(op);
  if (target.defined() && (!in_place || divisor != 1)) {
    prepared.tensor.bring_back = [target, memory, divisor] {
      const at::AutoDispatchBelowADInplaceOrView below_autograd_here;
      if (divisor != 1) divide_average(memory, divisor);
      copy_back(target, memory);
    };
  }
  return prepared;
}

}  // namespace gradwire::internal
