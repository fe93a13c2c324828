// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include <ATen/Functions.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <utility>

#include "gradwire/base/strings.h"
#include "gradwire/process_group/c10d/c10d_lists_internal.h"
#include "gradwire/process_group/sparse_all_reduce_internal.h"
#include "gradwire/process_group/tensor_memory_internal.h"
#include "gradwire/process_group/validate_internal.h"
#include "gradwire/process_group/work_internal.h"

namespace gradwire::internal {
namespace {

void require_alike(const Validator& check, const char* what, const Tensors& tensors) {
  for (const at::Tensor& each : tensors) {
    if (!each.defined()) check.fail(concat("one of the ", what, " is an undefined tensor"));
    const at::Tensor& first = tensors.front();
    if (each.scalar_type() == first.scalar_type() && each.sizes() == first.sizes() && each.device() == first.device() &&
        each.layout() == first.layout()) {
      continue;
    }
    check.fail(concat("the ", what, " of one call differ in shape, dtype, device or layout; make a call for each"));
  }
}

using Combine = at::Tensor (*)(const at::Tensor&, const at::Tensor&);

Combine combine_of(const Validator& check, ReduceOp op) {
  using Kind = ReduceOp::Kind;
  switch (op.kind) {
    case Kind::sum:
      return [](const at::Tensor& a, const at::Tensor& b) { return at::add(a, b); };
    case Kind::product:
      return [](const at::Tensor& a, const at::Tensor& b) { return at::mul(a, b); };
    case Kind::min:
      return at::minimum;
    case Kind::max:
      return at::maximum;
    case Kind::band:
      return at::bitwise_and;
    case Kind::bor:
      return at::bitwise_or;
    case Kind::bxor:
      return at::bitwise_xor;
    default:
      check.fail("of several tensors in one call there is no average and no PREMUL_SUM; make a call for each");
  }
}

// Half types round once, at the end, as in every reduction.
at::ScalarType dtype_of_sums(const Validator& check, at::ScalarType dtype) {
  // ATen does not combine these, though each tensor by itself can be reduced.
  if (at::isBarebonesUnsignedType(dtype) || dtype == at::kComplexHalf)
    check.fail(
        concat("several tensors of ", c10::toString(dtype), " in one call are not combined; make a call for each"));
  return at::isReducedFloatingType(dtype) ? at::kFloat : dtype;
}

// Ends when `work` has ended and every one of `tensors` holds `result`.
std::shared_ptr<Work> spread(std::shared_ptr<Work> work, const Tensors& tensors, const at::Tensor& result) {
  return work_after(
      std::move(work),
      [tensors, result] {
        for (const at::Tensor& each : tensors) copy_back(each, result);
      },
      Outputs::list(tensors));
}

}  // namespace

std::shared_ptr<Work> broadcast_list(ProcessGroup& group, const Tensors& tensors, BroadcastOptions options) {
  const Validator check(group, "broadcast");
  require_alike(check, "tensors", tensors);
  check.outputs("tensors", tensors);
  const int root_tensor = std::exchange(options.root_tensor, 0);
  if (root_tensor < 0 || root_tensor >= static_cast<int>(tensors.size()))
    check.fail(concat("root_tensor is ", root_tensor, ", and there are ", tensors.size(), " tensors"));
  const at::Tensor& sent = tensors[static_cast<std::size_t>(root_tensor)];
  return spread(group.broadcast({sent}, options), tensors, sent);
}

std::shared_ptr<Work> all_reduce_list(ProcessGroup& group, const Tensors& tensors, const AllReduceOptions& options) {
  const Validator check(group, "all_reduce");
  require_alike(check, "tensors", tensors);
  check.outputs("tensors", tensors);
  const at::ScalarType dtype = dtype_of_sums(check, tensors.front().scalar_type());
  check.reducible(tensors);
  check.reduction(options.op, tensors);
  const Combine combine = combine_of(check, options.op);
  const c10::NoGradGuard no_grad;
  at::Tensor result = tensors.front().to(dtype, /*non_blocking=*/false, /*copy=*/true);
  for (std::size_t i = 1; i < tensors.size(); ++i) result = combine(result, tensors[i]);
  return spread(group.all_reduce({result}, options), tensors, result);
}

void all_reduce_sparse_list(ProcessGroup& group, Tensors& tensors, const CollectiveOptions& options) {
  if (tensors.size() == 1) return all_reduce_sparse(group, tensors.front(), options);
  require_alike(Validator(group, "all_reduce"), "tensors", tensors);
  const c10::NoGradGuard no_grad;
  at::Tensor sum = tensors.front().clone();
  for (std::size_t i = 1; i < tensors.size(); ++i) sum = at::add(sum, tensors[i]);
  all_reduce_sparse(group, sum, options);
  for (at::Tensor& each : tensors) each.copy_(sum);
}

bool is_list_all_gather(const ProcessGroup& group, const std::vector<Tensors>& outputs, const Tensors& inputs) {
  const std::size_t all = inputs.size() * static_cast<std::size_t>(group.size());
  return inputs.size() > 1 && outputs.size() == inputs.size() &&
         std::all_of(outputs.begin(), outputs.end(), [&](const Tensors& list) { return list.size() == all; });
}

std::shared_ptr<Work> all_gather_list(ProcessGroup& group, const std::vector<Tensors>& outputs, const Tensors& inputs,
                                      const AllGatherOptions& options) {
  const Validator check(group, "all_gather");
  require_alike(check, "inputs", inputs);
  for (const Tensors& list : outputs) {
    check.outputs("outputs", list);
    for (const at::Tensor& each : list) check.matches("outputs", each, inputs.front(), inputs.front().numel());
  }
  std::vector<Tensors> of_input(inputs.size());
  for (std::size_t place = 0; place < outputs.front().size(); ++place)
    of_input[place % inputs.size()].push_back(outputs.front()[place]);
  return work_after(
      group.all_gather(std::move(of_input), inputs, options),
      [outputs] {
        for (std::size_t list = 1; list < outputs.size(); ++list) {
          for (std::size_t place = 0; place < outputs[list].size(); ++place)
            copy_back(outputs[list][place], outputs.front()[place]);
        }
      },
      Outputs::lists(outputs));
}

}  // namespace gradwire::internal
