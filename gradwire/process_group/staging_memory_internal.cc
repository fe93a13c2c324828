// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/process_group/staging_memory_internal.h"

#include <exception>
#include <utility>

#include "gradwire/base/error.h"

namespace gradwire::internal {

StagingMemory::Lease::Lease(StagingMemory& owner, at::Tensor memory, const c10::Stream& stream)
    : owner_(owner), memory_(std::move(memory)), stream_(stream) {}

StagingMemory::Lease::~Lease() {
  const MutexLock lock(owner_.mutex_);
  owner_.lent_ = false;
  try {
    owner_.kept_->last_copies.emplace(stream_.device_type()).record(stream_);
  } catch (const std::exception&) {
    // A device that is broken copies nothing more.
    owner_.kept_->last_copies.reset();
  }
}

at::Tensor StagingMemory::Lease::buffer(int which, at::ScalarType dtype) const {
  return memory_.narrow(0, which * kBufferBytes, kBufferBytes).view(dtype);
}

StagingMemory::~StagingMemory() {
  const MutexLock lock(mutex_);
  if (kept_ == nullptr) return;
  if (!owner_.is_current()) {
    // The device of a parent is out of reach in a forked child, and so is what the parent pinned.
    static_cast<void>(kept_.release());
    return;
  }
  try {
    if (kept_->last_copies) kept_->last_copies->synchronize();
  } catch (const std::exception&) {
    // As above: nothing copies any more.
  }
}

std::unique_ptr<StagingMemory::Lease> StagingMemory::lend(const c10::Stream& stream, const Allocate& allocate) {
  const MutexLock lock(mutex_);
  if (!asked_) {
    at::Tensor memory = allocate(2 * kBufferBytes);
    asked_ = true;
    if (memory.defined()) kept_ = std::make_unique<Kept>(Kept{std::move(memory), nullptr, std::nullopt});
  }
  if (kept_ == nullptr || lent_) return nullptr;
  if (stream.device_type() == c10::DeviceType::CUDA) {
    if (kept_->pinned == nullptr)
      kept_->pinned = std::make_unique<PinnedRange>(kept_->memory.mutable_data_ptr(), kept_->memory.nbytes());
    if (!kept_->pinned->is_pinned()) return nullptr;
  }
  if (kept_->last_copies) kept_->last_copies->block(stream);
  lent_ = true;
  return std::make_unique<Lease>(*this, kept_->memory, stream);
}

}  // namespace gradwire::internal
