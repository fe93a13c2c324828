// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Stands for handshake_internal.cc in a build without OpenSSL (GRADWIRE_OPENSSL=OFF), which has no secrets.
#include "gradwire/base/error.h"
#include "gradwire/store/handshake_internal.h"

namespace gradwire::store_internal {

void require_secrets() {
  throw UnsupportedError(
      "this gradwire was built without OpenSSL, so it has no secrets, and a store that was asked for one does not "
      "start; install OpenSSL's headers (Debian: libssl-dev) and build again, or start the job without a secret in a "
      "network that you trust");
}

std::string random_challenge() {
  require_secrets();
  return {};
}

std::string hmac_sha256(std::string_view, std::string_view) {
  require_secrets();
  return {};
}

std::string proof_of(Role, std::string_view, const Challenges&) {
  require_secrets();
  return {};
}

bool same_proof(std::string_view, std::string_view) noexcept { return false; }

}  // namespace gradwire::store_internal
