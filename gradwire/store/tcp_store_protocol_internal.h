// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The messages between a TcpStore and its server. docs/format/tcp_store.md is their specification.
//
// Decoders take bytes from clients that may be unauthenticated. A decoder checks every length before it uses the
// length, throws nothing of its own, and allocates no more than a small multiple of the bytes that it is given.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace gradwire::store_internal {

inline constexpr std::uint8_t kTcpStoreVersion = 1;
inline constexpr std::size_t kHelloBytes = 8;
inline constexpr std::size_t kLengthBytes = 8;
// The most bytes that a message may have behind its length.
inline constexpr std::uint64_t kMaxMessageBytes = 64 * 1024 * 1024;
// Memory for a body is taken as it comes, so much at first: a length alone costs the reader nothing.
inline constexpr std::size_t kFirstChunkBytes = 64 * 1024;

// What follows the server's hello: the client's first request; a challenge (handshake_internal.h); or nothing, because
// the server has as many clients as its limit allows and closes the connection.
enum class ServerSays : std::uint8_t { welcome = 0, prove = 1, full = 2 };

// What each side says first.
std::string client_hello();
std::string server_hello(ServerSays says = ServerSays::welcome);

struct Hello {
  int version = 0;
  ServerSays says = ServerSays::welcome;
};
// The other side's hello; nothing when it is no hello of this protocol.
std::optional<Hello> decode_client_hello(std::string_view hello) noexcept;
std::optional<Hello> decode_server_hello(std::string_view hello) noexcept;

// Where the server asks for proof, its challenge follows its hello. Then the client sends its own challenge and its
// proof. Then the server sends one byte and its own proof. A server that refuses the client sends zeros instead of a
// proof, and closes the connection.
inline constexpr char kProofAccepted = 1;
inline constexpr char kProofRefused = 0;

enum class Operation : std::uint8_t {
  set = 1,          // keys: 1, values: 1
  get = 2,          // keys: any number; number: timeout in ms. Reply: the first n >= 1 values, as many as fit a message
  add = 3,          // keys: 1; number: amount. Reply: number
  compare_set = 4,  // keys: 1; values: expected, desired. Reply: 1 value
  wait = 5,         // keys: any number; number: timeout in ms
  check = 6,        // keys: any number. Reply: number 0 or 1
  delete_key = 7,   // keys: 1. Reply: number 0 or 1
  num_keys = 8,     // Reply: number
  append = 9,       // keys: 1, values: 1
  multi_set = 10,   // keys and values: the same number
  queue_push = 11,  // keys: 1, values: 1
  queue_pop = 12,   // keys: 1; number: timeout in ms. Reply: 1 value
  queue_length = 13,  // keys: 1. Reply: number
  join = 14,          // counts the sender as one more worker. Reply: number of workers so far
  // keys: 0 or 1. Reply: the first n >= 0 keys behind the given one in the order of bytes, as many as fit a message;
  // number: 1 where more follow, else 0
  list_keys = 15,
};

struct Request {
  Operation operation = Operation::num_keys;
  std::int64_t number = 0;
  std::vector<std::string> keys;
  std::vector<std::string> values;

  friend bool operator==(const Request&, const Request&) = default;
};

enum class Status : std::uint8_t {
  ok = 0,
  timeout = 1,      // values: the missing keys
  store_error = 2,  // values: one message
};

struct Reply {
  Status status = Status::ok;
  std::int64_t number = 0;
  std::vector<std::string> values;

  friend bool operator==(const Reply&, const Reply&) = default;
};

// The bytes of a message behind its length.
std::size_t body_bytes(const Request& request) noexcept;

// A whole message, its length included.
std::string encode(const Request& request);
std::string encode(const Reply& reply);

// The number in the first kLengthBytes bytes of a message.
std::uint64_t decode_length(std::string_view bytes) noexcept;

// The message in the bytes behind the length; nothing unless it is well formed to the last byte, and, for a request,
// has the keys and values that its operation takes, within the limits of Store.
std::optional<Request> decode_request(std::string_view body);
std::optional<Reply> decode_reply(std::string_view body);

}  // namespace gradwire::store_internal
