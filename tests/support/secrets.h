// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// For tests of secrets, which a build without OpenSSL refuses. Such a test begins:
//
//   if (!has_secrets()) GTEST_SKIP() << kNoSecrets;
#pragma once

#include "gradwire/base/error.h"
#include "gradwire/store/handshake_internal.h"

namespace gradwire::test_support {

inline constexpr const char* kNoSecrets = "this build has no OpenSSL, so it has no secrets";

inline bool has_secrets() {
  try {
    store_internal::require_secrets();
    return true;
  } catch (const UnsupportedError&) {
    return false;
  }
}

}  // namespace gradwire::test_support
