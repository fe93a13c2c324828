// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Helpers of the hooks that step parameters: the bucket after the inner hook, and an averaged gradient as .grad.
#pragma once

#include <ATen/core/Tensor.h>

#include <utility>

#include "gradwire/ddp/comm_hook.h"

namespace gradwire::internal {

// Runs `inner` to its end, and returns a copy of `bucket` whose buffer is the result. Throws the hook's error, and
// InvalidArgument when the result does not fit the bucket or has another dtype.
GradBucket averaged_bucket(CommHook& inner, const GradBucket& bucket);

// While a LentGradient lives, `gradient` is the parameter's .grad, for an optimizer's step. The destructor puts the
// .grad before back: DDP writes to it later.
class LentGradient {
 public:
  LentGradient(at::Tensor parameter, at::Tensor gradient)
      : parameter_(std::move(parameter)), before_(std::exchange(parameter_.mutable_grad(), std::move(gradient))) {}
  ~LentGradient() {
    if (parameter_.defined()) parameter_.mutable_grad() = std::move(before_);
  }
  LentGradient(LentGradient&&) = default;  // a moved-from object puts nothing back
  LentGradient& operator=(LentGradient&&) = delete;

 private:
  at::Tensor parameter_;
  at::Tensor before_;
};

}  // namespace gradwire::internal
