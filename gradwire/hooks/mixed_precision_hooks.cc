// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/hooks/mixed_precision_hooks.h"

#include <ATen/core/jit_type.h>

#include <utility>

#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "gradwire/hooks/default_hooks.h"
#include "gradwire/hooks/support_internal.h"

namespace gradwire {

Future reduce_in_dtype_hook(const std::shared_ptr<ProcessGroup>& group, GradBucket& bucket, at::ScalarType dtype) {
  const at::Tensor buffer = bucket.buffer();
  if (!buffer.is_floating_point()) return allreduce_hook(group, bucket);
  ProcessGroup& over = group != nullptr ? *group : bucket.group();
  const at::Tensor reduced = internal::cast_to(buffer, dtype);
  const std::shared_ptr<Work> sum = over.all_reduce({reduced});
  return sum->future()->then(
      [sum, buffer, reduced, divisor = bucket.divisor(over)](c10::ivalue::Future& done) {
        internal::rethrow_error(done);
        if (divisor != 1) reduced.div_(divisor);
        if (!reduced.is_same(buffer)) internal::cast_into(reduced, buffer);
        return c10::IValue(buffer);
      },
      c10::TensorType::get());
}

std::shared_ptr<CommHook> make_reduce_in_dtype_hook(at::ScalarType dtype, std::shared_ptr<ProcessGroup> group) {
  if (dtype != at::kHalf && dtype != at::kBFloat16 && dtype != at::kFloat && dtype != at::kDouble) {
    throw InvalidArgument(
        concat("Gradients can be reduced in Half, BFloat16, Float or Double; ", dtype, " is not one of these."));
  }
  HookTraits traits{.name = "reduce_in_dtype", .parallel_safe = true, .single_collective = true};
  traits.identity = concat(traits.name, ":dtype=", dtype);
  if (group != nullptr) traits.groups.push_back(group);
  return make_comm_hook(
      std::move(group),
      [dtype](const std::shared_ptr<ProcessGroup>& over, GradBucket& bucket) {
        return reduce_in_dtype_hook(over, bucket, dtype);
      },
      std::move(traits));
}

}  // namespace gradwire
