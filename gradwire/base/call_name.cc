// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/base/call_name.h"

#include <utility>

#include "gradwire/base/thread_local.h"

namespace gradwire {
namespace {

GRADWIRE_STATIC_THREAD_LOCAL const CallName* innermost = nullptr;

}  // namespace

CallName::CallName(Describe describe, const void* context) noexcept
    : describe_(describe), context_(context), outer_(std::exchange(innermost, this)) {}

CallName::~CallName() { innermost = outer_; }

std::string call_name(const std::string& otherwise) {
  for (const CallName* each = innermost; each != nullptr; each = each->outer_) {
    std::string name = each->describe_(each->context_);
    if (!name.empty()) return name;
  }
  return otherwise;
}

}  // namespace gradwire
