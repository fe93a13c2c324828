// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/ddp/unused_gradients_internal.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <c10/core/GradMode.h>

#include <cstddef>
#include <cstdint>

#include "gradwire/ddp/replica_sync_internal.h"

namespace gradwire::internal {
namespace {

// What a rank tells of a .grad, beside the number of a dense one's dtype.
constexpr std::int32_t kUndefined = -1, kSparse = -2;

std::int32_t kind_of(const at::Tensor& grad) {
  if (!grad.defined()) return kUndefined;
  return grad.layout() == at::kStrided ? static_cast<std::int32_t>(grad.scalar_type()) : kSparse;
}

void take_over(const at::Tensor& parameter, const at::Tensor& values) {
  at::Tensor& grad = parameter.mutable_grad();
  if (kind_of(grad) != kind_of(values)) grad = at::empty_like(parameter, values.options());
  grad.copy_(values);
}

}  // namespace

void follow_gradients(ProcessGroup& group, const std::vector<at::Tensor>& parameters, int leader, bool follows) {
  if (parameters.empty()) return;
  const c10::NoGradGuard no_grad;
  const at::Tensor kinds = at::full({static_cast<std::int64_t>(parameters.size())}, kUndefined, at::kInt);
  auto* const kind = kinds.data_ptr<std::int32_t>();
  for (std::size_t i = 0; i < parameters.size(); ++i) kind[i] = kind_of(parameters[i].grad());
  broadcast_values(group, {kinds}, leader);

  std::vector<at::Tensor> values(parameters.size());
  std::vector<at::Tensor> sent;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (kind[i] < 0) continue;
    const at::Tensor& parameter = parameters[i];
    values[i] = group.rank() == leader
                    ? parameter.grad().contiguous()
                    : at::empty(parameter.sizes(), parameter.options().dtype(static_cast<at::ScalarType>(kind[i])));
    sent.push_back(values[i]);
  }
  broadcast_values(group, sent, leader);
  if (!follows) return;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (values[i].defined()) take_over(parameters[i], values[i]);
    if (kind[i] == kUndefined) parameters[i].mutable_grad().reset();
  }
}

}  // namespace gradwire::internal
