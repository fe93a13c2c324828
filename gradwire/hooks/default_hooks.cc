// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/hooks/default_hooks.h"

#include <ATen/Functions.h>
#include <ATen/core/jit_type.h>

#include <string>
#include <utility>

#include "gradwire/kernels/cast.h"

namespace gradwire {
namespace {

ProcessGroup& group_of(const std::shared_ptr<ProcessGroup>& group, GradBucket& bucket) {
  return group != nullptr ? *group : bucket.group();
}

std::optional<DType> castable(const at::Tensor& tensor) {
  if (!tensor.device().is_cpu()) return std::nullopt;
  switch (tensor.scalar_type()) {
    case at::kFloat:
      return DType::f32;
    case at::kDouble:
      return DType::f64;
    case at::kHalf:
      return DType::f16;
    case at::kBFloat16:
      return DType::bf16;
    default:
      return std::nullopt;
  }
}

// destination = source in destination's type; both flat and contiguous.
void cast_into(const at::Tensor& source, at::Tensor destination) {
  const auto from = castable(source);
  const auto to = castable(destination);
  if (from && to) {
    kernels::cast(*from, source.const_data_ptr(), *to, destination.data_ptr(),
                  static_cast<std::size_t>(source.numel()));
  } else {
    destination.copy_(source);
  }
}

Future compress(const std::shared_ptr<ProcessGroup>& group, GradBucket& bucket, at::ScalarType narrow) {
  const at::Tensor buffer = bucket.buffer();
  if (buffer.scalar_type() != at::kFloat && buffer.scalar_type() != at::kDouble) return allreduce_hook(group, bucket);
  at::Tensor compressed = at::empty(buffer.sizes(), buffer.options().dtype(narrow));
  cast_into(buffer, compressed);
  compressed.div_(bucket.divisor());
  const std::shared_ptr<Work> sum = group_of(group, bucket).all_reduce({compressed});
  return tensor_future(sum)->then(
      [buffer](c10::ivalue::Future& done) {
        cast_into(tensor_of(done), buffer);
        return c10::IValue(buffer);
      },
      c10::TensorType::get());
}

using Body = Future (*)(const std::shared_ptr<ProcessGroup>&, GradBucket&);

std::shared_ptr<CommHook> make(std::string name, std::shared_ptr<ProcessGroup> group, Body body) {
  HookTraits traits{.name = std::move(name), .parallel_safe = true, .single_collective = true};
  if (group != nullptr) traits.groups.push_back(group);
  return make_comm_hook(std::move(group), body, std::move(traits));
}

}  // namespace

Future allreduce_hook(const std::shared_ptr<ProcessGroup>& group, GradBucket& bucket) {
  at::Tensor buffer = bucket.buffer();
  if (bucket.divisor() != 1) buffer.div_(bucket.divisor());
  return tensor_future(group_of(group, bucket).all_reduce({buffer}));
}

Future fp16_compress_hook(const std::shared_ptr<ProcessGroup>& group, GradBucket& bucket) {
  return compress(group, bucket, at::kHalf);
}

Future bf16_compress_hook(const std::shared_ptr<ProcessGroup>& group, GradBucket& bucket) {
  return compress(group, bucket, at::kBFloat16);
}

std::shared_ptr<CommHook> make_allreduce_hook(std::shared_ptr<ProcessGroup> group) {
  return make("allreduce", std::move(group), allreduce_hook);
}

std::shared_ptr<CommHook> make_fp16_compress_hook(std::shared_ptr<ProcessGroup> group) {
  return make("fp16_compress", std::move(group), fp16_compress_hook);
}

std::shared_ptr<CommHook> make_bf16_compress_hook(std::shared_ptr<ProcessGroup> group) {
  return make("bf16_compress", std::move(group), bf16_compress_hook);
}

}  // namespace gradwire
