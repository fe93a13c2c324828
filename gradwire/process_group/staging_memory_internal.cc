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

StagingMemory::Kept::~Kept() { settle(); }

void StagingMemory::Kept::settle() noexcept {
  try {
    if (last_copies) last_copies->synchronize();
  } catch (const std::exception&) {
    // A device that is broken copies nothing more.
  }
  last_copies.reset();
}

StagingMemory::~StagingMemory() {
  // The device of a parent is out of reach in a forked child, and so is what the parent pinned. Nor is the mutex taken:
  // a thread that the child does not have may hold it.
  if (!owner_.is_current()) static_cast<void>(kept_.release());
}

void StagingMemory::release() {
  std::unique_ptr<Kept> kept;
  const MutexLock lock(mutex_);
  asked_ = true;
  if (!lent_) kept.swap(kept_);
}

std::unique_ptr<StagingMemory::Lease> StagingMemory::lend(const c10::Stream& stream, const Allocate& allocate) {
  if (!owner_.is_current()) return nullptr;
  {
    MutexLock lock(mutex_);
    if (!std::exchange(asked_, true)) {
      // Not under the mutex: other calls of the group may run on this thread, or on another one, before this call has
      // its turn, and they may come here.
      lock.unlock();
      at::Tensor memory = allocate(2 * kBufferBytes);
      lock.lock();
      if (memory.defined()) kept_ = std::make_unique<Kept>(std::move(memory));
    }
  }
  const MutexLock lock(mutex_);
  if (kept_ == nullptr || lent_) return nullptr;
  if (stream.device_type() == c10::DeviceType::CUDA) {
    if (kept_->pinned == nullptr)
      kept_->pinned = std::make_unique<PinnedRange>(kept_->memory.mutable_data_ptr(), kept_->memory.nbytes());
    if (!kept_->pinned->is_pinned()) return nullptr;
  }
  // Events order the streams of one kind of device.
  if (kept_->last_copies && kept_->last_copies->device_type() != stream.device_type()) kept_->settle();
  if (kept_->last_copies) kept_->last_copies->block(stream);
  lent_ = true;
  return std::make_unique<Lease>(*this, kept_->memory, stream);
}

}  // namespace gradwire::internal
