// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/store/key_value_map_internal.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"

namespace gradwire::store_internal {
namespace {

std::int64_t parse_number(const std::string& key, const Store::Value& text) {
  std::int64_t number = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, problem] = std::from_chars(text.data(), end, number);
  if (problem != std::errc() || stop != end) {
    throw StoreError(
        concat("add: key ", quote(key), " holds ", quote(text), ", which is no decimal number of 64 bits"));
  }
  return number;
}

std::size_t entry_bytes(const std::string& key, const Store::Value& value) {
  return KeyValueMap::kEntryBytes + key.size() + value.size();
}

}  // namespace

void KeyValueMap::count(const std::string& key, std::size_t before, std::size_t after) {
  if (after > before && after - before > max_bytes_ - bytes_) {
    throw StoreError(concat("the store is full: it holds ", bytes_, " of at most ", max_bytes_,
                            " bytes (TcpStoreLimits::stored_bytes), and ", quote(key), " needs ", after - before,
                            " more; delete keys that nobody needs any more, or raise the limit of the rank that runs "
                            "the server"));
  }
  bytes_ = bytes_ - before + after;
}

void KeyValueMap::set(const std::string& key, Value value) {
  const Value* held = find(key);
  count(key, held == nullptr ? 0 : entry_bytes(key, *held), entry_bytes(key, value));
  values_[key] = std::move(value);
}

const Store::Value* KeyValueMap::find(const std::string& key) const {
  const auto found = values_.find(key);
  return found == values_.end() ? nullptr : &found->second;
}

std::int64_t KeyValueMap::add(const std::string& key, std::int64_t amount) {
  const Value* held = find(key);
  const std::int64_t before = held == nullptr ? 0 : parse_number(key, *held);
  std::int64_t sum = 0;
  if (__builtin_add_overflow(before, amount, &sum)) {
    throw StoreError(concat("add: ", before, " + ", amount, " in key ", quote(key), " does not fit 64 bits"));
  }
  set(key, std::to_string(sum));
  return sum;
}

KeyValueMap::Swap KeyValueMap::compare_set(const std::string& key, const Value& expected, const Value& desired) {
  const Value* held = find(key);
  if (held == nullptr && !expected.empty()) return {expected, false};
  if (held != nullptr && *held != expected) return {*held, false};
  set(key, desired);
  return {desired, true};
}

void KeyValueMap::append(const std::string& key, const Value& value) {
  const Value* held = find(key);
  if (held != nullptr && held->size() + value.size() > Store::kMaxValueBytes) {
    throw StoreError(concat("append: the value of key ", quote(key), " would have ", held->size() + value.size(),
                            " bytes; a value has at most ", Store::kMaxValueBytes));
  }
  if (held == nullptr) return set(key, value);
  count(key, 0, value.size());
  values_[key] += value;
}

bool KeyValueMap::remove(const std::string& key) {
  const auto found = values_.find(key);
  if (found == values_.end()) return false;
  count(key, entry_bytes(key, found->second), 0);
  values_.erase(found);
  return true;
}

std::vector<std::string_view> KeyValueMap::keys_after(std::string_view key) const {
  std::vector<std::string_view> result;
  for (const auto& entry : values_) {
    if (entry.first > key) result.emplace_back(entry.first);
  }
  std::sort(result.begin(), result.end());
  return result;
}

void KeyValueMap::push(const std::string& queue, Value value) {
  count(queue, 0, entry_bytes(queue, value));
  queues_[queue].push_back(std::move(value));
}

void KeyValueMap::put_back(const std::string& queue, Value value) {
  bytes_ += entry_bytes(queue, value);  // there was room a moment ago
  queues_[queue].push_front(std::move(value));
}

std::optional<Store::Value> KeyValueMap::pop(const std::string& queue) {
  const auto found = queues_.find(queue);
  if (found == queues_.end()) return std::nullopt;
  Value value = std::move(found->second.front());
  found->second.pop_front();
  if (found->second.empty()) queues_.erase(found);
  count(queue, entry_bytes(queue, value), 0);
  return value;
}

std::int64_t KeyValueMap::queue_length(const std::string& queue) const {
  const auto found = queues_.find(queue);
  return found == queues_.end() ? 0 : static_cast<std::int64_t>(found->second.size());
}

std::vector<std::string> KeyValueMap::missing(std::span<const std::string> keys) const {
  std::vector<std::string> result;
  for (const std::string& key : keys) {
    if (!values_.contains(key) && !queues_.contains(key)) result.push_back(key);
  }
  return result;
}

std::vector<std::string> KeyValueMap::missing_values(std::span<const std::string> keys) const {
  std::vector<std::string> result;
  for (const std::string& key : keys) {
    if (!values_.contains(key)) result.push_back(key);
  }
  return result;
}

void KeyValueMap::clear() {
  values_.clear();
  queues_.clear();
  bytes_ = 0;
}

void require_key(const char* operation, const std::string& key) {
  if (key.empty()) throw InvalidArgument(concat(operation, ": a key must not be empty"));
  if (key.size() > Store::kMaxKeyBytes) {
    throw InvalidArgument(concat(operation, ": a key of ", key.size(), " bytes is too long; at most ",
                                 Store::kMaxKeyBytes, " are taken"));
  }
}

void require_keys(const char* operation, std::span<const std::string> keys) {
  for (const std::string& key : keys) require_key(operation, key);
}

void require_value(const char* operation, const Store::Value& value) {
  if (value.size() <= Store::kMaxValueBytes) return;
  throw InvalidArgument(concat(operation, ": a value of ", value.size(), " bytes is too long; at most ",
                               Store::kMaxValueBytes, " are taken"));
}

void require_pairs(const char* operation, std::span<const std::string> keys, std::span<const Store::Value> values) {
  if (keys.size() != values.size()) {
    throw InvalidArgument(concat(operation, ": ", keys.size(), " keys but ", values.size(), " values"));
  }
  require_keys(operation, keys);
  for (const Store::Value& value : values) require_value(operation, value);
}

void require_timeout(const char* operation, Milliseconds timeout) {
  if (timeout < Milliseconds::zero()) {
    throw InvalidArgument(concat(operation, ": a timeout of ", timeout.count(), " ms is negative"));
  }
}

std::string quote(std::string_view key) {
  constexpr std::size_t kShown = 100;
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string result = "'";
  for (const char c : key.substr(0, kShown)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte < 0x7f) {
      result += c;
    } else {
      result += {'\\', 'x', kDigits[byte >> 4], kDigits[byte & 15]};
    }
  }
  return result + (key.size() > kShown ? "...'" : "'");
}

std::string quote_list(std::span<const std::string> keys) {
  constexpr std::size_t kShown = 8;
  std::vector<std::string> quoted;
  for (const std::string& key : keys.first(std::min(keys.size(), kShown))) quoted.push_back(quote(key));
  std::string result = join(quoted, ", ");
  return keys.size() <= kShown ? result : concat(result, " and ", keys.size() - kShown, " more");
}

std::string missing_message(std::string_view store, std::string_view operation, std::span<const std::string> missing,
                            Milliseconds timeout) {
  return concat(store, ": ", operation, ": timeout after ", timeout.count(), " ms of waiting for ", quote_list(missing),
                ", which no rank has set; has every rank started, with the same store, prefix and world size?");
}

}  // namespace gradwire::store_internal
