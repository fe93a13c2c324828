// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/hooks/memory_orders_internal.h"

#include <ATen/ops/empty_strided.h>
#include <c10/util/strides.h>

#include <algorithm>
#include <utility>

#include "gradwire/compress/memory.h"

namespace gradwire::internal {

std::string MemoryOrders::parameter_of(std::string_view key) {
  if (key.starts_with(compress::kLocalPrefix)) key.remove_prefix(compress::kLocalPrefix.size());
  return std::string(key.substr(std::min(key.find('/'), key.size() - 1) + 1));
}

std::optional<MemoryOrders::Order> MemoryOrders::follow(const std::string& parameter, const BucketLayout::Slot& slot) {
  if (slot.sizes.size() < 2) return std::nullopt;
  const MutexLock lock(mutex_);
  const auto found = orders_.find(parameter);
  if (found == orders_.end()) {
    orders_.emplace(parameter, Order{slot.sizes, slot.strides});
    return std::nullopt;
  }
  if (found->second.sizes == slot.sizes && found->second.strides == slot.strides) return std::nullopt;
  Order before = std::exchange(found->second, {slot.sizes, slot.strides});
  // A parameter of other sizes: the memory decides whether it takes it.
  if (before.sizes != slot.sizes) return std::nullopt;
  return before;
}

at::Tensor MemoryOrders::saved(std::string_view key, const at::Tensor& values) const {
  const MutexLock lock(mutex_);
  const auto found = orders_.find(parameter_of(key));
  if (found == orders_.end()) return values;
  const auto& [sizes, strides] = found->second;
  if (c10::multiply_integers(sizes) != values.numel()) return values;
  return reordered(values, sizes, strides, c10::contiguous_strides(sizes)).view(sizes);
}

void MemoryOrders::take(const std::map<std::string, at::Tensor>& state) {
  Orders orders;
  for (const auto& [key, values] : state) {
    if (values.dim() < 2) continue;
    const auto row_major = c10::contiguous_strides(values.sizes());
    orders.insert_or_assign(parameter_of(key), Order{values.sizes().vec(), {row_major.begin(), row_major.end()}});
  }
  const MutexLock lock(mutex_);
  orders_ = std::move(orders);
}

void MemoryOrders::keep() {
  const MutexLock lock(mutex_);
  kept_ = orders_;
}

void MemoryOrders::revert() {
  const MutexLock lock(mutex_);
  if (kept_) orders_ = *kept_;
}

at::Tensor reordered(const at::Tensor& values, at::IntArrayRef sizes, at::IntArrayRef before, at::IntArrayRef now) {
  at::Tensor out = at::empty_strided(sizes, now, values.options());
  out.copy_(values.as_strided(sizes, before, values.storage_offset()));
  return out.as_strided({out.numel()}, {1});
}

}  // namespace gradwire::internal
