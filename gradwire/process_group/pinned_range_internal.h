// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Memory of the host that CUDA's devices copy to and from directly, although an allocator that knows nothing of CUDA
// made it. Needs no header and no library of CUDA: the driver is asked where torch has loaded it.
#pragma once

#include <cstddef>
#include <memory>

namespace gradwire::internal {

// Pins a range of memory for all CUDA devices of this process, while it lives.
class PinnedRange {
 public:
  // The calling thread has a context of CUDA, as after any call of CUDA's runtime. Never throws for a range that cannot
  // be pinned: is_pinned() says so.
  PinnedRange(void* data, std::size_t bytes);
  // Nothing copies to or from the range any more.
  ~PinnedRange();
  PinnedRange(const PinnedRange&) = delete;
  PinnedRange& operator=(const PinnedRange&) = delete;

  bool is_pinned() const noexcept { return data_ != nullptr; }

 private:
  std::shared_ptr<void> driver_;
  void* data_ = nullptr;  // null: not pinned
};

}  // namespace gradwire::internal
