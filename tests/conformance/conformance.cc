// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "tests/conformance/conformance.h"

#include "gradwire/backend/shared/max_ranks.h"
#include "gradwire/base/error.h"

namespace gradwire::testing {
namespace {

constexpr std::size_t kFence = 32;
constexpr std::size_t kAlignment = 64;
constexpr std::byte kFenceByte{0xa5};
constexpr std::size_t kMaxBuffers = 2 * kMaxRanksOfHost + 2;

}  // namespace

Arena::Arena(RankContext& context, std::size_t capacity)
    : rank_(context.rank()), capacity_(capacity + kMaxBuffers * (2 * kFence + 2 * kAlignment)) {
  allocation_ = context.channel().allocate(capacity_, guarded());
  own_.resize(capacity_);
}

void Arena::start(Placement placement, std::size_t misaligned) {
  const bool own = placement == Placement::own || (placement == Placement::mixed && rank_ % 2 == 1) ||
                   (placement == Placement::mixed_rank_0 && rank_ == 0);
  shared_ = !own;
  base_ = own ? own_.data() : allocation_.data.get();
  used_ = 0;
  misaligned_ = misaligned;
  fences_.clear();
}

std::byte* Arena::reserve(std::size_t bytes) {
  used_ += kFence;
  const auto address = reinterpret_cast<std::uintptr_t>(base_ + used_);
  used_ += (kAlignment - address % kAlignment) % kAlignment + misaligned_;
  std::byte* const data = base_ + used_;
  used_ += bytes + kFence;
  if (used_ > capacity_) throw InternalError("the test's arena is too small");
  for (std::byte* fence : {data - kFence, data + bytes}) {
    std::memset(fence, std::to_integer<int>(kFenceByte), kFence);
    fences_.push_back(fence);
  }
  return data;
}

std::byte* Arena::add(const Bytes& content) {
  std::byte* const data = reserve(content.size());
  if (!content.empty()) std::memcpy(data, content.data(), content.size());
  return data;
}

std::byte* Arena::add(std::size_t bytes) {
  std::byte* const data = reserve(bytes);
  std::memset(data, 0x5c, bytes);
  return data;
}

void Arena::expect_fences() const {
  for (const std::byte* fence : fences_) {
    for (std::size_t i = 0; i < kFence; ++i) {
      if (fence[i] == kFenceByte) continue;
      ADD_FAILURE() << "a byte beyond a buffer was changed";
      return;
    }
  }
}

}  // namespace gradwire::testing
