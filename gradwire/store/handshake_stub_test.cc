// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// A build without OpenSSL has no secrets: every part of the handshake refuses, and no proof is ever right. The stub is
// compiled into this program, so the test holds in builds with OpenSSL too.
#include <gtest/gtest.h>

#include <string>

#include "gradwire/base/error.h"
#include "gradwire/store/handshake_internal.h"

namespace gradwire::store_internal {
namespace {

TEST(HandshakeStub, RefusesSecretsAndSaysWhatIsMissing) {
  try {
    require_secrets();
    FAIL() << "no error";
  } catch (const UnsupportedError& error) {
    EXPECT_NE(std::string(error.what()).find("libssl-dev"), std::string::npos) << error.what();
  }
  EXPECT_THROW((void)random_challenge(), UnsupportedError);
  EXPECT_THROW((void)hmac_sha256("secret", "text"), UnsupportedError);
  EXPECT_THROW((void)proof_of(Role::client, "secret", {}), UnsupportedError);
}

TEST(HandshakeStub, TakesNoProof) { EXPECT_FALSE(same_proof("", "")); }

}  // namespace
}  // namespace gradwire::store_internal
