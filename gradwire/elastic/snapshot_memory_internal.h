// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Memory for a copy of the state that is made while others wait: a thread writes to the pages before
// (ready_pages_internal.h), or the constructor where they are few.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <memory>
#include <vector>

#include "gradwire/base/deadline.h"
#include "gradwire/base/os_handles.h"
#include "gradwire/base/process.h"

namespace gradwire::internal {

// A contiguous copy of `tensor` in memory of its own, which is on the CPU.
at::Tensor contiguous_copy_on_cpu(const at::Tensor& tensor);

// One thread uses the object. The copies keep the memory.
class SnapshotMemory final {
 public:
  // Room for copies of `tensors`, ready at once up to 64 KiB. Where the kernel refuses the memory, there is none.
  explicit SnapshotMemory(const std::vector<at::Tensor>& tensors);
  // Waits for the thread, which stops early.
  ~SnapshotMemory();
  SnapshotMemory(const SnapshotMemory&) = delete;
  SnapshotMemory& operator=(const SnapshotMemory&) = delete;

  // Whether the pages are written to, or that has taken too long for others to wait for it.
  bool is_ready() const noexcept { return has_ended_ || patience_.expired(); }
  // A contiguous copy on the CPU of `tensor`, which may be on a device: in this memory if it is written to and there is
  // room, else in memory of its own.
  at::Tensor copy(const at::Tensor& tensor);

 private:
  void write_to_pages() noexcept;

  std::shared_ptr<const Mapping> memory_;  // null: the kernel refused it
  std::size_t used_ = 0;
  const Deadline patience_ = Deadline::after(std::chrono::seconds(10));
  std::atomic<bool> has_ended_{false};
  std::atomic<bool> stops_{false};
  Thread thread_;  // none for little memory; the last: it uses the others until it is joined
};

}  // namespace gradwire::internal
