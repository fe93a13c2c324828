// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The gradients of a rank that has joined the others (join.h), and those of its own.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/UndefinedTensorImpl.h>
#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <vector>

namespace gradwire::internal {

// A rank that shadows the others' iterations gets their averages in .grad. They are none of its own: what it
// accumulates after the Join goes on from what it had before. Not thread-safe.
class ShadowGradients final {
 public:
  // `copied`: gradients lie for good in memory that the averages will overwrite.
  ShadowGradients(std::vector<at::Tensor> parameters, bool copied);

  // Before an iteration that this rank shadows.
  void before_shadow();
  // After it: .grad holds the averages.
  void after_shadow();
  // Before the next forward of this rank's own: every average that is still as it was left becomes what the rank had
  // before it joined. One that was zeroed, taken away or added to meanwhile stays. Does nothing without a shadow.
  void leave();

 private:
  struct Left {
    c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> gradient;
    std::uint32_t version;
  };
  const std::vector<at::Tensor> parameters_;
  const bool copied_;
  std::vector<at::Tensor> own_;  // by parameter; empty: none was shadowed since leave()
  std::vector<Left> left_;
};

}  // namespace gradwire::internal
