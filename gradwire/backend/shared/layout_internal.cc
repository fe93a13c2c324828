// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/backend/shared/layout_internal.h"

#include <algorithm>

namespace gradwire::shared {

ChannelLayout::ChannelLayout(int size) noexcept {
  // A few ranks get windows that stay in a core's own cache; many ranks get smaller ones, so that a channel costs some
  // 32 MiB at most.
  constexpr std::size_t kSmallest = std::size_t{64} << 10;
  constexpr std::size_t kPage = 4096;
  window = std::clamp(kLargestWindow * 8 / static_cast<std::size_t>(size) / kPage * kPage, kSmallest, kLargestWindow);
  stride = sizeof(RankSlot) + 4 * window;
}

}  // namespace gradwire::shared
