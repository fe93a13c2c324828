// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/base/backward_errors.h"

#include <utility>

namespace gradwire {
namespace {

thread_local TranslateError present = nullptr;

}  // namespace

TranslateError backward_errors() noexcept { return present; }

BackwardErrors::BackwardErrors(TranslateError translate) noexcept : before_(std::exchange(present, translate)) {}
BackwardErrors::~BackwardErrors() { present = before_; }

}  // namespace gradwire
