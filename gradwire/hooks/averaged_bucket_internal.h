// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// What the hooks need that step parameters: a bucket after the inner hook, a gradient where optimizers look for it.
#pragma once

#include <ATen/core/Tensor.h>

#include <utility>

#include "gradwire/ddp/comm_hook.h"

namespace gradwire::internal {

// Runs `inner` to its end; `bucket` with what it made for a buffer. Throws the hook's error, InvalidArgument for a
// result that is no tensor of the bucket's dtype.
GradBucket averaged_bucket(CommHook& inner, const GradBucket& bucket);

// While it lives, `gradient` is the parameter's .grad, for an optimizer's step. Afterwards it is what it was: DDP
// writes there later.
class LentGradient {
 public:
  LentGradient(at::Tensor parameter, at::Tensor gradient)
      : parameter_(std::move(parameter)), before_(std::exchange(parameter_.mutable_grad(), std::move(gradient))) {}
  ~LentGradient() {
    if (parameter_.defined()) parameter_.mutable_grad() = std::move(before_);
  }
  LentGradient(LentGradient&&) = default;  // what was moved from gives nothing back
  LentGradient& operator=(LentGradient&&) = delete;

 private:
  at::Tensor parameter_;
  at::Tensor before_;
};

}  // namespace gradwire::internal
