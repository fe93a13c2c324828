// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/store/tcp_store_protocol_internal.h"

#include <algorithm>
#include <span>

#include "gradwire/store/store.h"

namespace gradwire::store_internal {
namespace {

constexpr std::string_view kClientMagic = "gwtcpc";
constexpr std::string_view kServerMagic = "gwtcps";

template <class Integer>
void put(std::string& out, Integer value) {
  for (std::size_t i = 0; i < sizeof(Integer); ++i) {
    out += static_cast<char>((static_cast<std::uint64_t>(value) >> (8 * i)) & 0xFFU);
  }
}

template <class Integer>
Integer get(std::string_view bytes) noexcept {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < sizeof(Integer); ++i) {
    value |= static_cast<std::uint64_t>(static_cast<unsigned char>(bytes[i])) << (8 * i);
  }
  return static_cast<Integer>(value);
}

std::string hello(std::string_view magic, ServerSays says) {
  std::string out(magic);
  put(out, kTcpStoreVersion);
  put(out, static_cast<std::uint8_t>(says));
  return out;
}

std::optional<Hello> decode_hello(std::string_view magic, std::string_view bytes) noexcept {
  if (bytes.size() != kHelloBytes || bytes.substr(0, magic.size()) != magic) return std::nullopt;
  const auto version = get<std::uint8_t>(bytes.substr(magic.size()));
  const auto says = get<std::uint8_t>(bytes.substr(magic.size() + 1));
  // Another version may use the rest as it likes.
  if (version == kTcpStoreVersion && says > static_cast<std::uint8_t>(ServerSays::full)) return std::nullopt;
  return Hello{version, static_cast<ServerSays>(says)};
}

std::size_t list_bytes(const std::vector<std::string>& list) noexcept {
  std::size_t bytes = 4;
  for (const std::string& item : list) bytes += 4 + item.size();
  return bytes;
}

void put_list(std::string& out, const std::vector<std::string>& list) {
  put(out, static_cast<std::uint32_t>(list.size()));
  for (const std::string& item : list) {
    put(out, static_cast<std::uint32_t>(item.size()));
    out += item;
  }
}

// Takes a message apart from front to back; each method says whether there were enough bytes.
class Reader {
 public:
  explicit Reader(std::string_view bytes) noexcept : rest_(bytes) {}

  template <class Integer>
  bool number(Integer& value) noexcept {
    if (rest_.size() < sizeof(Integer)) return false;
    value = get<Integer>(rest_);
    rest_.remove_prefix(sizeof(Integer));
    return true;
  }

  bool list(std::vector<std::string>& items) {
    std::uint32_t count = 0;
    // Each item has a length of four bytes at least: a count that lies cannot make us reserve more than the message's
    // size allows.
    if (!number(count) || count > rest_.size() / 4) return false;
    items.reserve(count);
    for (std::uint32_t i = 0; i < count; ++i) {
      std::uint32_t length = 0;
      if (!number(length) || length > rest_.size()) return false;
      items.emplace_back(rest_.substr(0, length));
      rest_.remove_prefix(length);
    }
    return true;
  }

  bool at_end() const noexcept { return rest_.empty(); }

 private:
  std::string_view rest_;
};

bool has(const Request& request, std::size_t keys, std::size_t values) noexcept {
  return request.keys.size() == keys && request.values.size() == values;
}

bool has_what_its_operation_takes(const Request& request) noexcept {
  switch (request.operation) {
    case Operation::set:
    case Operation::append:
    case Operation::queue_push:
      return has(request, 1, 1);
    case Operation::compare_set:
      return has(request, 1, 2);
    case Operation::add:
    case Operation::delete_key:
    case Operation::queue_length:
      return has(request, 1, 0);
    case Operation::queue_pop:
      return has(request, 1, 0) && request.number >= 0;
    case Operation::get:
    case Operation::wait:
      return has(request, request.keys.size(), 0) && request.number >= 0;
    case Operation::check:
      return has(request, request.keys.size(), 0);
    case Operation::multi_set:
      return has(request, request.keys.size(), request.keys.size());
    case Operation::num_keys:
    case Operation::join:
      return has(request, 0, 0);
    case Operation::list_keys:
      return request.keys.size() <= 1 && request.values.empty();
  }
  return false;  // an operation that this version does not know
}

}  // namespace

std::string client_hello() { return hello(kClientMagic, ServerSays::welcome); }

std::string server_hello(ServerSays says) { return hello(kServerMagic, says); }

std::optional<Hello> decode_client_hello(std::string_view bytes) noexcept { return decode_hello(kClientMagic, bytes); }

std::optional<Hello> decode_server_hello(std::string_view bytes) noexcept { return decode_hello(kServerMagic, bytes); }

std::size_t body_bytes(const Request& request) noexcept {
  return 1 + 8 + list_bytes(request.keys) + list_bytes(request.values);
}

std::string encode(const Request& request) {
  std::string out;
  out.reserve(kLengthBytes + body_bytes(request));
  put(out, static_cast<std::uint64_t>(body_bytes(request)));
  put(out, static_cast<std::uint8_t>(request.operation));
  put(out, request.number);
  put_list(out, request.keys);
  put_list(out, request.values);
  return out;
}

std::string encode(const Reply& reply) {
  const std::size_t bytes = 1 + 8 + list_bytes(reply.values);
  std::string out;
  out.reserve(kLengthBytes + bytes);
  put(out, static_cast<std::uint64_t>(bytes));
  put(out, static_cast<std::uint8_t>(reply.status));
  put(out, reply.number);
  put_list(out, reply.values);
  return out;
}

std::uint64_t decode_length(std::string_view bytes) noexcept { return get<std::uint64_t>(bytes); }

std::optional<Request> decode_request(std::string_view body) {
  Request request;
  Reader reader(body);
  std::uint8_t operation = 0;
  if (!reader.number(operation) || !reader.number(request.number) || !reader.list(request.keys) ||
      !reader.list(request.values) || !reader.at_end()) {
    return std::nullopt;
  }
  request.operation = static_cast<Operation>(operation);
  const auto good_key = [](const std::string& key) { return !key.empty() && key.size() <= Store::kMaxKeyBytes; };
  const auto good_value = [](const std::string& value) { return value.size() <= Store::kMaxValueBytes; };
  if (!has_what_its_operation_takes(request) || !std::all_of(request.keys.begin(), request.keys.end(), good_key) ||
      !std::all_of(request.values.begin(), request.values.end(), good_value)) {
    return std::nullopt;
  }
  return request;
}

std::optional<Reply> decode_reply(std::string_view body) {
  Reply reply;
  Reader reader(body);
  std::uint8_t status = 0;
  if (!reader.number(status) || !reader.number(reply.number) || !reader.list(reply.values) || !reader.at_end() ||
      status > static_cast<std::uint8_t>(Status::store_error)) {
    return std::nullopt;
  }
  reply.status = static_cast<Status>(status);
  return reply;
}

}  // namespace gradwire::store_internal
