// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/elastic/snapshot_memory_internal.h"

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>

#include <utility>

#include "gradwire/base/error.h"
#include "gradwire/elastic/ready_pages_internal.h"

namespace gradwire::internal {
namespace {

// As at::empty() aligns tensors.
constexpr std::size_t kAlignment = 64;
// The first writes to so little memory take no longer than to start a thread.
constexpr std::size_t kLittle = std::size_t{64} << 10;

constexpr std::size_t aligned(std::size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

std::shared_ptr<const Mapping> fresh_memory(const std::vector<at::Tensor>& tensors) {
  std::size_t bytes = 0;
  for (const at::Tensor& tensor : tensors) bytes += aligned(tensor.nbytes());
  if (bytes == 0) return nullptr;
  try {
    return std::make_shared<const Mapping>(Mapping::anonymous(bytes));
  } catch (const ResourceError&) {
    return nullptr;  // the copies then try for themselves
  }
}

}  // namespace

at::Tensor contiguous_copy_on_cpu(const at::Tensor& tensor) {
  const at::Tensor source = tensor.detach();
  return source.is_cpu() ? source.clone(at::MemoryFormat::Contiguous) : source.cpu().contiguous();
}

SnapshotMemory::SnapshotMemory(const std::vector<at::Tensor>& tensors) : memory_(fresh_memory(tensors)) {
  if (memory_ == nullptr || memory_->bytes() <= kLittle) {
    write_to_pages();
  } else {
    thread_ = Thread("elastic-memory", [this] { write_to_pages(); });
  }
}

SnapshotMemory::~SnapshotMemory() { stops_ = true; }

void SnapshotMemory::write_to_pages() noexcept {
  if (memory_ != nullptr) internal::write_to_pages(*memory_, stops_);
  has_ended_ = true;
}

at::Tensor SnapshotMemory::copy(const at::Tensor& tensor) {
  const c10::NoGradGuard no_grad;
  const at::Tensor source = tensor.detach();
  const std::size_t end = used_ + aligned(source.nbytes());
  if (memory_ == nullptr || !has_ended_ || source.nbytes() == 0 || end > memory_->bytes())
    return contiguous_copy_on_cpu(source);
  at::Tensor copy = at::from_blob(
      memory_->data() + std::exchange(used_, end), source.sizes(), [keep = memory_](void*) mutable { keep.reset(); },
      source.options().device(at::kCPU));
  return copy.copy_(source);
}

}  // namespace gradwire::internal
