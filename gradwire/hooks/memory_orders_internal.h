// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The order in which a memory keeps the values of each parameter.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "gradwire/base/mutex.h"
#include "gradwire/ddp/grad_bucket.h"

namespace gradwire::internal {

// A memory keeps the values of a parameter as they lie in the bucket: by the strides of the parameter. Another module
// may have other strides (channels_last), so a saved state is row-major. A tensor of the sizes of the parameter holds
// it; a 1-D tensor, which earlier versions saved for each parameter, holds the values as they lay in the bucket.
// Parameters with fewer than two dimensions have one order, and stay 1-D. Thread-safe.
class MemoryOrders final {
 public:
  struct Order {
    std::vector<std::int64_t> sizes, strides;
    bool operator==(const Order&) const = default;
  };

  // The name of the parameter in a key of a memory: "local/residual/NAME", "aggregate/NAME".
  static std::string parameter_of(std::string_view key);

  // The values of `parameter` lie in the order of `slot` from now on. Returns the order before, when that is another
  // one: the memory then has to be brought into the order of `slot`.
  std::optional<Order> follow(const std::string& parameter, const BucketLayout::Slot& slot);

  // The state to save of the `values` under `key`: row-major.
  at::Tensor saved(std::string_view key, const at::Tensor& values) const;
  // Forgets all orders, and takes those of `state`: of the tensors to load, by key.
  void take(const std::map<std::string, at::Tensor>& state);

  // As compress::Memory::keep() and revert().
  void keep();
  void revert();

 private:
  using Orders = std::map<std::string, Order>;
  mutable Mutex mutex_;
  Orders orders_ GRADWIRE_GUARDED_BY(mutex_);  // of parameters with two dimensions or more
  std::optional<Orders> kept_ GRADWIRE_GUARDED_BY(mutex_);
};

// Brings `values` (1-D, contiguous), which lie by the strides `before`, into the strides `now`. Returns new memory.
at::Tensor reordered(const at::Tensor& values, at::IntArrayRef sizes, at::IntArrayRef before, at::IntArrayRef now);

}  // namespace gradwire::internal
