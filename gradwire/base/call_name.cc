// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/base/call_name.h"

#include <utility>

#include "gradwire/base/thread_local.h"

namespace gradwire {
namespace {

GRADWIRE_STATIC_THREAD_LOCAL const CallName* innermost = nullptr;
GRADWIRE_STATIC_THREAD_LOCAL const CallName* whole = nullptr;  // the innermost one that counts, within PartsOfCall

}  // namespace

CallName::CallName(Describe describe, const void* context) noexcept
    : describe_(describe), context_(context), outer_(std::exchange(innermost, this)) {}

CallName::~CallName() { innermost = outer_; }

PartsOfCall::PartsOfCall() noexcept : before_(std::exchange(whole, whole != nullptr ? whole : innermost)) {}

PartsOfCall::~PartsOfCall() { whole = before_; }

std::string call_name(const std::string& otherwise) {
  for (const CallName* each = whole != nullptr ? whole : innermost; each != nullptr; each = each->outer_) {
    std::string name = each->describe_(each->context_);
    if (!name.empty()) return name;
  }
  return otherwise;
}

}  // namespace gradwire
