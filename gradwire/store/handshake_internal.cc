// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/store/handshake_internal.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include "gradwire/base/error.h"

namespace gradwire::store_internal {
namespace {

unsigned char* bytes_of(std::string& text) { return reinterpret_cast<unsigned char*>(text.data()); }

}  // namespace

void require_secrets() {}

std::string random_challenge() {
  std::string challenge(kChallengeBytes, '\0');
  if (::RAND_bytes(bytes_of(challenge), static_cast<int>(challenge.size())) != 1) {
    throw ResourceError("the system gives no random numbers for a challenge");
  }
  return challenge;
}

std::string hmac_sha256(std::string_view secret, std::string_view text) {
  std::string proof(kProofBytes, '\0');
  unsigned int length = 0;
  const unsigned char* made =
      ::HMAC(::EVP_sha256(), secret.data(), static_cast<int>(secret.size()),
             reinterpret_cast<const unsigned char*>(text.data()), text.size(), bytes_of(proof), &length);
  if (made == nullptr || length != kProofBytes) throw ResourceError("OpenSSL computes no HMAC-SHA-256");
  return proof;
}

std::string proof_of(Role role, std::string_view secret, const Challenges& challenges) {
  const std::string text =
      std::string(role == Role::client ? "gradwire tcp store client" : "gradwire tcp store server") +
      challenges.of_server + challenges.of_client;
  return hmac_sha256(secret, text);
}

bool same_proof(std::string_view one, std::string_view other) noexcept {
  return one.size() == other.size() && ::CRYPTO_memcmp(one.data(), other.data(), one.size()) == 0;
}

}  // namespace gradwire::store_internal
