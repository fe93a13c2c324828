// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/hooks/compress_wrappers.h"

#include <ATen/core/jit_type.h>

#include <utility>

#include "gradwire/hooks/support_internal.h"
#include "gradwire/hooks/wrapper_internal.h"

namespace gradwire {
namespace {

class CompressWrapper final : public internal::HookWrapper {
 public:
  CompressWrapper(std::string_view what, const std::shared_ptr<CommHook>& inner, at::ScalarType narrow)
      : HookWrapper(what, inner, /*keeps_single_collective=*/true), narrow_(narrow) {}

  Future run(GradBucket& bucket) override {
    const at::Tensor buffer = bucket.buffer();
    if (buffer.scalar_type() != at::kFloat && buffer.scalar_type() != at::kDouble) return inner().run(bucket);
    // A copy: the caller's bucket keeps its buffer.
    GradBucket narrow = bucket;
    narrow.set_buffer(internal::cast_to(buffer, narrow_));
    return run_hook(inner(), narrow)
        ->then(
            [buffer, name = inner().traits().name](c10::ivalue::Future& done) {
              const at::Tensor tensor = tensor_of(done);
              if (!tensor.defined() || tensor.numel() != buffer.numel() || tensor.device() != buffer.device()) {
                throw InvalidArgument(concat("The hook '", name, "' must return a tensor of ", buffer.numel(),
                                             " elements on ", buffer.device(), ", like the bucket's buffer."));
              }
              internal::cast_into(tensor.contiguous(), buffer);
              return c10::IValue(buffer);
            },
            c10::TensorType::get());
  }

 private:
  const at::ScalarType narrow_;
};

}  // namespace

std::shared_ptr<CommHook> make_fp16_compress_wrapper(std::shared_ptr<CommHook> inner) {
  return std::make_shared<CompressWrapper>("fp16_compress_wrapper", inner, at::kHalf);
}

std::shared_ptr<CommHook> make_bf16_compress_wrapper(std::shared_ptr<CommHook> inner) {
  return std::make_shared<CompressWrapper>("bf16_compress_wrapper", inner, at::kBFloat16);
}

}  // namespace gradwire
