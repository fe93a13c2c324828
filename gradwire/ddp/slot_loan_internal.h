// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// A slot's memory as a gradient that the user may keep.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/intrusive_ptr.h>

namespace gradwire::internal {

// Lends the memory of one slot as a gradient, so that averages need not be copied out of the bucket. When the slot is
// needed again, a tensor that still holds the gradient keeps its values: reclaim() moves the values to other memory
// under that tensor. For memory of the CPU only: the allocator of a device ignores record_stream() for memory under a
// storage that the allocator has not made, so streams that use the gradient would go unnoticed. Not thread-safe.
class SlotLoan {
 public:
  // Reclaims the loan before, and returns a tensor over the memory of `slot`. The tensor has a storage of its own,
  // which keeps the memory alive.
  at::Tensor lend(const at::Tensor& slot);
  // Ends the loan: the slot is free afterwards. Costs nothing when no tensor holds the gradient any more. A raw pointer
  // into the gradient (an array of NumPy, say) still points into the slot's memory, whose values change. That memory
  // lives as long as the gradient's storage.
  void reclaim();

 private:
  c10::weak_intrusive_ptr<c10::StorageImpl> lent_{c10::intrusive_ptr<c10::StorageImpl>()};
};

}  // namespace gradwire::internal
