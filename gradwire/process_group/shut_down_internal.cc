// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/process_group/shut_down_internal.h"

namespace gradwire::internal {

std::exception_ptr shut_down_all(std::span<const std::shared_ptr<ProcessGroup>> groups) noexcept {
  std::exception_ptr first;
  for (const auto& group : groups) {
    try {
      if (group != nullptr) group->shutdown();
    } catch (...) {
      if (first == nullptr) first = std::current_exception();
    }
  }
  return first;
}

}  // namespace gradwire::internal
