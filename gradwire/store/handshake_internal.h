// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// How a client and a server prove to each other that they hold the same secret without sending it: each draws a
// challenge, and answers with the HMAC-SHA-256 (RFC 2104), under the secret, of its role and both challenges.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace gradwire::store_internal {

inline constexpr std::size_t kChallengeBytes = 32;
inline constexpr std::size_t kProofBytes = 32;

enum class Role { client, server };

// Both challenges, as they were sent.
struct Challenges {
  std::string of_server;
  std::string of_client;
};

// Throws UnsupportedError where gradwire was built without OpenSSL: such a build has no secrets. Every caller of the
// functions below has called this one before.
void require_secrets();

// kChallengeBytes random bytes. Throws ResourceError when there are none.
std::string random_challenge();

// The HMAC-SHA-256 of `text` under `secret`: kProofBytes bytes. Throws ResourceError.
std::string hmac_sha256(std::string_view secret, std::string_view text);

// kProofBytes bytes. The role keeps either side from sending the other's proof back.
std::string proof_of(Role role, std::string_view secret, const Challenges& challenges);

// Whether two proofs are the same. The call takes the same time for every wrong proof.
bool same_proof(std::string_view one, std::string_view other) noexcept;

}  // namespace gradwire::store_internal
