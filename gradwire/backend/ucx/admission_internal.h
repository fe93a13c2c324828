// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Who may send frames: what ranks tell each other through the store, and how a frame shows whose it is.
//
// UCX's port takes connections from anyone. So each rank draws a random challenge for a group and publishes it with its
// address, sealed with the job's secret. Two ranks then compute a token for each direction, out of the secret and both
// challenges. Every frame carries the token of its direction; a frame without it is dropped. To know a token takes the
// secret and the store's contents. As with TcpStore, nothing is encrypted or signed: who reads the traffic of the
// network can imitate a rank.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <string_view>

#include "gradwire/base/deadline.h"

namespace gradwire::ucx {

// What one rank tells the others.
struct RankRecord {
  std::string host;       // its name, for messages
  std::string challenge;  // store_internal::random_challenge()
  Milliseconds silence;   // how long the rank waits for a sign of life of another
  std::string address;    // UCX's
};

// The record as text for the store, sealed with the secret, which may be empty. Throws ResourceError.
std::string encode_record(const RankRecord& record, int rank, std::string_view secret);

// The record of `rank`. Throws MismatchError that names `rank` when the seal is not of this secret, or the text makes
// no sense.
RankRecord decode_record(const std::string& text, int rank, std::string_view secret);

using Token = std::array<std::byte, 16>;

// The token of the frames of rank `from` to rank `to`. Throws ResourceError.
Token token_of(std::string_view secret, int from, const RankRecord& record_of_from, int to,
               const RankRecord& record_of_to);

// Whether two tokens are the same. Takes the same time for every wrong token.
bool same_token(const Token& one, const Token& other) noexcept;

}  // namespace gradwire::ucx
