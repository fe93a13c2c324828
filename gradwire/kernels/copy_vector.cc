// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The vector loop of copy.h. It does whole groups of pages, with streamed stores whole vectors, too, and leaves the
// rest.
#include "gradwire/kernels/highway_internal.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "gradwire/kernels/copy_vector.cc"
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "gradwire/kernels/dispatch_internal.h"

HWY_BEFORE_NAMESPACE();
namespace gradwire::kernels {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

constexpr std::size_t kPage = kPageBytes;
static_assert(4 * kPage == kCopyFrom);

// All loads come before all stores: a store to the same place of a page as a later load would hold that load up.
template <bool kStream>
HWY_INLINE void copy_pages(const std::uint8_t* HWY_RESTRICT from, std::uint8_t* HWY_RESTRICT to) {
  const hn::CappedTag<std::uint8_t, 64> tag;
  const std::size_t lanes = hn::Lanes(tag);
  const auto store = [&](auto value, std::uint8_t* address) HWY_ATTR {
    if constexpr (kStream) {
      hn::Stream(value, tag, address);
    } else {
      hn::StoreU(value, tag, address);
    }
  };
  for (std::size_t i = 0; i < kPage; i += 2 * lanes) {
    const auto a0 = hn::LoadU(tag, from + i), a1 = hn::LoadU(tag, from + i + lanes);
    const auto b0 = hn::LoadU(tag, from + i + kPage), b1 = hn::LoadU(tag, from + i + kPage + lanes);
    const auto c0 = hn::LoadU(tag, from + i + 2 * kPage), c1 = hn::LoadU(tag, from + i + 2 * kPage + lanes);
    const auto d0 = hn::LoadU(tag, from + i + 3 * kPage), d1 = hn::LoadU(tag, from + i + 3 * kPage + lanes);
    store(a0, to + i), store(a1, to + i + lanes);
    store(b0, to + i + kPage), store(b1, to + i + kPage + lanes);
    store(c0, to + i + 2 * kPage), store(c1, to + i + 2 * kPage + lanes);
    store(d0, to + i + 3 * kPage), store(d1, to + i + 3 * kPage + lanes);
  }
}

std::size_t copy(void* to, const void* from, std::size_t begin, std::size_t end, bool streamed) noexcept {
  note_run(hwy::TargetName(HWY_TARGET));
  auto* const destination = static_cast<std::uint8_t*>(to);
  const auto* const source = static_cast<const std::uint8_t*>(from);
  std::size_t i = begin;
  for (; end - i >= kCopyFrom; i += kCopyFrom) {
    if (streamed) {
      copy_pages<true>(source + i, destination + i);
    } else {
      copy_pages<false>(source + i, destination + i);
    }
  }
  if (!streamed) return i;
  const hn::CappedTag<std::uint8_t, 64> tag;
  const std::size_t lanes = hn::Lanes(tag);
  for (; end - i >= lanes; i += lanes) hn::Stream(hn::LoadU(tag, source + i), tag, destination + i);
  // Streamed stores become visible to other threads only after a fence.
  hwy::FlushStream();
  return i;
}

}  // namespace HWY_NAMESPACE
}  // namespace gradwire::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace gradwire::kernels {

CopyLoop find_copy(std::int64_t target) noexcept { return GRADWIRE_FOR_TARGET(target, copy); }

}  // namespace gradwire::kernels
#endif
