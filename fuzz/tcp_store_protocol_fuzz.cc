// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Feeds arbitrary bytes to the decoders of the TcpStore protocol. A request or reply that is accepted must encode to
// the very bytes it came from, so the decoders can have overlooked or invented nothing.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "gradwire/store/tcp_store_protocol_internal.h"

namespace store = gradwire::store_internal;

namespace {

void require(bool condition) {
  if (!condition) __builtin_trap();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  if (const auto request = store::decode_request(bytes)) {
    const std::string message = store::encode(*request);
    require(store::decode_length(message) == size);
    require(std::string_view(message).substr(store::kLengthBytes) == bytes);
  }
  if (const auto reply = store::decode_reply(bytes)) {
    require(std::string_view(store::encode(*reply)).substr(store::kLengthBytes) == bytes);
  }
  if (const auto hello = store::decode_client_hello(bytes)) {
    require(size == store::kHelloBytes && !store::decode_server_hello(bytes));
  }
  if (const auto hello = store::decode_server_hello(bytes); hello && hello->version == store::kTcpStoreVersion) {
    require(store::server_hello(hello->says) == bytes);
  }
  return 0;
}
