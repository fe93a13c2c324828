// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/hooks/default_hooks.h"

#include <ATen/core/jit_type.h>

#include <string>
#include <utility>

#include "gradwire/hooks/support_internal.h"

namespace gradwire {
namespace {

ProcessGroup& group_of(const std::shared_ptr<ProcessGroup>& group, GradBucket& bucket) {
  return group != nullptr ? *group : bucket.group();
}

Future compress(const std::shared_ptr<ProcessGroup>& group, GradBucket& bucket, at::ScalarType narrow) {
  const at::Tensor buffer = bucket.buffer();
  if (buffer.scalar_type() != at::kFloat && buffer.scalar_type() != at::kDouble) return allreduce_hook(group, bucket);
  at::Tensor compressed = internal::cast_to(buffer, narrow);
  ProcessGroup& over = group_of(group, bucket);
  compressed.div_(bucket.divisor(over));
  const std::shared_ptr<Work> sum = over.all_reduce({compressed});
  return tensor_future(sum)->then(
      [buffer](c10::ivalue::Future& done) {
        internal::cast_into(tensor_of(done), buffer);
        return c10::IValue(buffer);
      },
      c10::TensorType::get());
}

}  // namespace

Future allreduce_hook(const std::shared_ptr<ProcessGroup>& group, GradBucket& bucket) {
  at::Tensor buffer = bucket.buffer();
  ProcessGroup& over = group_of(group, bucket);
  if (const int divisor = bucket.divisor(over); divisor != 1) buffer.div_(divisor);
  return tensor_future(over.all_reduce({buffer}));
}

Future fp16_compress_hook(const std::shared_ptr<ProcessGroup>& group, GradBucket& bucket) {
  return compress(group, bucket, at::kHalf);
}

Future bf16_compress_hook(const std::shared_ptr<ProcessGroup>& group, GradBucket& bucket) {
  return compress(group, bucket, at::kBFloat16);
}

std::shared_ptr<CommHook> make_allreduce_hook(std::shared_ptr<ProcessGroup> group) {
  return internal::make_group_hook("allreduce", std::move(group), allreduce_hook);
}

std::shared_ptr<CommHook> make_fp16_compress_hook(std::shared_ptr<ProcessGroup> group) {
  return internal::make_group_hook("fp16_compress", std::move(group), fp16_compress_hook);
}

std::shared_ptr<CommHook> make_bf16_compress_hook(std::shared_ptr<ProcessGroup> group) {
  return internal::make_group_hook("bf16_compress", std::move(group), bf16_compress_hook);
}

}  // namespace gradwire
