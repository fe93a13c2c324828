// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/hooks/support_internal.h"

#include <ATen/Functions.h>

#include <optional>
#include <utility>

#include "gradwire/kernels/cast.h"
#include "gradwire/process_group/dtype_internal.h"
#include "gradwire/process_group/flat_tensors_internal.h"

namespace gradwire::internal {
namespace {

// The dtype for kernels::cast(); nullopt when it cannot cast this tensor.
std::optional<DType> castable(const at::Tensor& tensor) {
  return tensor.device().is_cpu() ? to_floating_dtype(tensor.scalar_type()) : std::nullopt;
}

}  // namespace

void cast_into(const at::Tensor& source, const at::Tensor& destination) {
  const auto from = castable(source);
  const auto to = castable(destination);
  if (from && to) {
    kernels::cast(*from, source.const_data_ptr(), *to, destination.mutable_data_ptr(),
                  static_cast<std::size_t>(source.numel()));
  } else {
    destination.copy_(source);
  }
}

at::Tensor cast_to(const at::Tensor& source, at::ScalarType dtype) {
  if (source.scalar_type() == dtype) return source;
  at::Tensor result = at::empty(source.sizes(), source.options().dtype(dtype));
  cast_into(source, result);
  return result;
}

void average_together(ProcessGroup& group, int divisor, const std::vector<at::Tensor>& parts) {
  if (parts.empty()) return;
  at::Tensor row = flatten(parts);
  if (divisor != 1) row.div_(divisor);
  group.all_reduce({row})->wait();
  unflatten(row, parts);
}

void rethrow_error(c10::ivalue::Future& done) {
  if (done.hasError()) std::rethrow_exception(done.exception_ptr());
}

std::shared_ptr<CommHook> make_group_hook(std::string name, std::shared_ptr<ProcessGroup> group, HookBody body) {
  HookTraits traits{.name = std::move(name), .parallel_safe = true, .single_collective = true};
  if (group != nullptr) traits.groups.push_back(group);
  return make_comm_hook(std::move(group), body, std::move(traits));
}

}  // namespace gradwire::internal
