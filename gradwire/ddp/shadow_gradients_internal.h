// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The own gradients of a rank that has joined (join.h), while its .grad holds the other ranks' averages.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/UndefinedTensorImpl.h>
#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <vector>

namespace gradwire::internal {

// A rank that shadows the other ranks' iterations gets their averages in .grad. These are not the rank's own gradients:
// after the Join the rank accumulates from the gradients that it had before it joined. Not thread-safe.
class ShadowGradients final {
 public:
  explicit ShadowGradients(std::vector<at::Tensor> parameters);

  // Called before each iteration that this rank shadows.
  void before_shadow();
  // Called after that iteration, when .grad holds the averages, and for the parameters `unused`, which no rank used,
  // what a rank has there that has not joined.
  void after_shadow(std::vector<at::Tensor> unused);
  // Called when all ranks have joined. Puts back the own gradients of the parameters that no rank used in the last
  // iteration.
  void end_join();
  // Called before this rank's next own forward. Replaces every unchanged average by the gradient that the rank had
  // before it joined. A .grad that was zeroed, removed or added to meanwhile stays. Does nothing when no iteration was
  // shadowed.
  void leave();

 private:
  struct Left {
    c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> gradient;
    std::uint32_t version;
  };
  const std::vector<at::Tensor> parameters_;
  std::vector<at::Tensor> own_;  // copies, by parameter; empty: no iteration was shadowed since leave()
  std::vector<Left> left_;
  std::vector<at::Tensor> unused_;  // of the last iteration that was shadowed
};

}  // namespace gradwire::internal
