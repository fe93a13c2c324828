// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/ddp/slot_loan_internal.h"

#include <ATen/Functions.h>
#include <ATen/ops/from_blob.h>

#include <memory>
#include <utility>

namespace gradwire::internal {
namespace {

// The memory of a gradient that has moved.
struct Moved {
  at::DataPtr own;
  at::DataPtr before;  // arrays of NumPy and capsules of DLPack may still point there: they keep the tensor alone alive

  static void destroy(void* moved) { delete static_cast<Moved*>(moved); }
};

}  // namespace

at::Tensor SlotLoan::lend(const at::Tensor& slot) {
  reclaim();
  at::Tensor gradient = at::from_blob(
      slot.data_ptr(), slot.sizes(), slot.strides(), [hold = slot.storage()](void*) {}, slot.options(), slot.device());
  lent_ = gradient.storage().getWeakStorageImpl();
  return gradient;
}

void SlotLoan::reclaim() {
  const c10::intrusive_ptr<c10::StorageImpl> held = lent_.lock();
  lent_.reset();
  if (!held || held->nbytes() == 0) return;
  const auto bytes = static_cast<std::int64_t>(held->nbytes());
  const auto options = at::TensorOptions(held->device()).dtype(at::kByte);
  at::Tensor own = at::empty({bytes}, options);
  own.copy_(at::from_blob(held->mutable_data(), {bytes}, options));
  // Tensors find their memory through their storage, so all tensors that share the storage move at once.
  auto moved = std::make_unique<Moved>();
  moved->own = std::move(own.storage().mutable_data_ptr());
  moved->before = held->set_data_ptr(at::DataPtr(nullptr, held->device()));
  void* const memory = moved->own.get();
  held->set_data_ptr_noswap(at::DataPtr(memory, moved.release(), &Moved::destroy, held->device()));
}

}  // namespace gradwire::internal
