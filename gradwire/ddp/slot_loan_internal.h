// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Gradients that lie in a bucket and still belong to the user.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/intrusive_ptr.h>

namespace gradwire::internal {

// Lends the memory of one slot as a gradient, so that averages need not be copied out of the bucket. When the slot is
// needed again, whoever still holds the gradient keeps its values: they move to memory of their own, under the tensors
// that are held. Not thread-safe.
class SlotLoan {
 public:
  // A tensor over the memory of `slot`, with a storage of its own; keeps the memory alive. What was lent before is
  // reclaimed.
  at::Tensor lend(const at::Tensor& slot);
  // The slot is free afterwards. Costs nothing when nobody holds what was lent.
  void reclaim();

 private:
  c10::weak_intrusive_ptr<c10::StorageImpl> lent_{c10::intrusive_ptr<c10::StorageImpl>()};
};

}  // namespace gradwire::internal
