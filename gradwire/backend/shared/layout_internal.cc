// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/backend/shared/layout_internal.h"

#include <algorithm>

#include "gradwire/base/strings.h"

namespace gradwire::shared {

const char* name_of(Operation operation) noexcept {
  switch (operation) {
    case Operation::none:
      return "nothing";
    case Operation::barrier:
      return "barrier";
    case Operation::broadcast:
      return "broadcast";
    case Operation::all_reduce:
      return "all_reduce";
    case Operation::reduce:
      return "reduce";
    case Operation::all_gather:
      return "all_gather";
    case Operation::gather:
      return "gather";
    case Operation::scatter:
      return "scatter";
    case Operation::reduce_scatter:
      return "reduce_scatter";
    case Operation::all_to_all:
      return "all_to_all";
    case Operation::duplicate:
      return "duplicate";
    case Operation::allocate:
      return "allocate";
  }
  return "an unknown operation";
}

std::string describe(const Fingerprint& fingerprint) {
  const auto operation = fingerprint.operation;
  std::string text = name_of(operation);
  if (operation == Operation::allocate) {
    text += concat(" of ", fingerprint.count, " bytes");
  } else if (operation == Operation::all_to_all) {
    text += concat(" of ", gradwire::name_of(fingerprint.dtype));
  } else if (operation != Operation::barrier && operation != Operation::duplicate && operation != Operation::none) {
    text += concat(" of ", fingerprint.count, " ", gradwire::name_of(fingerprint.dtype));
  }
  if (operation == Operation::all_reduce || operation == Operation::reduce || operation == Operation::reduce_scatter) {
    text += concat(" (", gradwire::name_of(fingerprint.op));
    if (fingerprint.op == ReduceOp::Kind::premul_sum) text += concat(" by ", fingerprint.factor);
    text += ")";
  }
  if (fingerprint.root >= 0) text += concat(" with root ", fingerprint.root);
  text += concat(", call ", fingerprint.sequence);
  if (fingerprint.tag != CallTag{}) {
    text += concat(", iteration ", fingerprint.tag.iteration, ", bucket ", fingerprint.tag.bucket, ", stage ",
                   fingerprint.tag.stage);
  }
  return text;
}

ChannelLayout::ChannelLayout(int size) noexcept {
  // A few ranks get windows that stay in a core's own cache; many ranks get smaller ones, so that a channel costs some
  // 32 MiB at most.
  constexpr std::size_t kLargest = std::size_t{256} << 10;
  constexpr std::size_t kSmallest = std::size_t{64} << 10;
  window = std::clamp(kLargest * 8 / static_cast<std::size_t>(size), kSmallest, kLargest);
  stride = sizeof(RankSlot) + 4 * window;
}

}  // namespace gradwire::shared
