// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/elastic/tape_memory_internal.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "gradwire/base/error.h"
#include "gradwire/elastic/ready_pages_internal.h"

namespace gradwire::internal {
namespace {

// The allocator has smaller rows at hand, and a process may have only some 65,000 mappings.
constexpr std::size_t kLeastBytes = std::size_t{1} << 20;

}  // namespace

TapeMemory::TapeMemory() : thread_("elastic-tape", [this] { make_ready(); }) {}

TapeMemory::~TapeMemory() {
  MutexLock lock(mutex_);
  stops_ = true;
  changed_.notify_all();
  lock.unlock();
  thread_.join();
}

at::Tensor TapeMemory::take(std::size_t bytes) {
  const auto size = static_cast<std::int64_t>(bytes);
  if (bytes < kLeastBytes) return at::empty({size}, at::TensorOptions(at::kByte));
  MutexLock lock(mutex_);
  Shelf& shelf = note(bytes);
  Mapping block;
  if (!shelf.ready.empty()) {
    block = std::move(shelf.ready.back());
    shelf.ready.pop_back();
  }
  lock.unlock();
  if (block.data() == nullptr) block = Mapping::anonymous(bytes);
  auto held = std::make_shared<Mapping>(std::move(block));
  return at::from_blob(
      held->data(), {size},
      [self = shared_from_this(), held](void*) mutable {
        self->give_back(std::move(*held));
        self.reset();
      },
      at::TensorOptions(at::kByte));
}

void TapeMemory::expect(std::size_t bytes) {
  if (bytes < kLeastBytes) return;
  const MutexLock lock(mutex_);
  note(bytes);
}

TapeMemory::Shelf& TapeMemory::note(std::size_t bytes) {
  Shelf& shelf = shelves_[bytes];
  shelf.step = step_;
  shelf.wanted = std::max(shelf.wanted, ++shelf.taken);
  return shelf;
}

void TapeMemory::begin_step() {
  const MutexLock lock(mutex_);
  ++step_;
  std::erase_if(shelves_,
                [this](const auto& shelf) GRADWIRE_REQUIRES(mutex_) { return shelf.second.step < step_ - 2; });
  for (auto& [bytes, shelf] : shelves_) {
    shelf.taken = 0;
    shelf.due = shelf.wanted - std::min(shelf.wanted, shelf.ready.size());
  }
  changed_.notify_all();
}

std::size_t TapeMemory::ready_bytes() const {
  const MutexLock lock(mutex_);
  std::size_t bytes = 0;
  for (const auto& [size, shelf] : shelves_) bytes += size * shelf.ready.size();
  return bytes;
}

// Where a newcomer reads as fast as the steps record, a step's memory has come back when the next step begins, and the
// thread has nothing to do.
void TapeMemory::give_back(Mapping block) noexcept {
  const MutexLock lock(mutex_);
  const auto shelf = shelves_.find(block.bytes());
  if (shelf == shelves_.end() || shelf->second.ready.size() >= shelf->second.wanted) return;
  try {
    shelf->second.ready.push_back(std::move(block));
  } catch (const std::exception&) {
    // Without memory for the list, the block is unmapped.
  }
}

void TapeMemory::make_ready() noexcept {
  MutexLock lock(mutex_);
  while (!stops_) {
    const auto shelf =
        std::find_if(shelves_.begin(), shelves_.end(), [](const auto& each) { return each.second.due > 0; });
    if (shelf == shelves_.end()) {
      changed_.wait(lock);
      continue;
    }
    const std::size_t bytes = shelf->first;
    --shelf->second.due;
    lock.unlock();
    try {
      Mapping block = Mapping::anonymous(bytes);
      write_to_pages(block, stops_);
      give_back(std::move(block));
    } catch (const ResourceError&) {
      return;  // the copies then try for themselves
    }
    lock.lock();
  }
}

}  // namespace gradwire::internal
