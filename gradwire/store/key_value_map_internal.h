// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// What all stores share: the meaning of the operations, the checks of arguments, the messages of errors.
#pragma once

#include <cstdint>
#include <deque>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "gradwire/store/store.h"

namespace gradwire::store_internal {

// The data of a store and the meaning of each operation on it; store.h says what each does. Nothing here waits. Not
// thread-safe.
//
// Its methods take arguments that have passed the require_ functions below. A method that throws has changed nothing.
// A method that would make the data larger than `max_bytes` throws StoreError.
class KeyValueMap {
 public:
  using Value = Store::Value;

  // The bytes that a key, or an element of a queue, counts beside its own.
  static constexpr std::size_t kEntryBytes = 128;

  explicit KeyValueMap(std::size_t max_bytes = std::numeric_limits<std::size_t>::max()) : max_bytes_(max_bytes) {}

  void set(const std::string& key, Value value);
  // The value of `key`, nullptr where there is none; valid until the next change.
  const Value* find(const std::string& key) const;
  // Throws StoreError when the key holds no decimal number or the sum does not fit.
  std::int64_t add(const std::string& key, std::int64_t amount);

  struct Swap {
    Value value;   // what compare_set returns
    bool changed;  // whether the key was set
  };
  Swap compare_set(const std::string& key, const Value& expected, const Value& desired);

  // Throws StoreError when the value would become longer than Store::kMaxValueBytes.
  void append(const std::string& key, const Value& value);
  bool remove(const std::string& key);
  std::int64_t num_keys() const noexcept { return static_cast<std::int64_t>(values_.size()); }
  // The keys behind `key` in the order of their bytes, all of them for an empty `key`; valid until the next change.
  std::vector<std::string_view> keys_after(std::string_view key) const;

  void push(const std::string& queue, Value value);
  std::optional<Value> pop(const std::string& queue);
  // Makes what pop() has just returned the first element again.
  void put_back(const std::string& queue, Value value);
  std::int64_t queue_length(const std::string& queue) const;

  // Those of `keys` that are neither a key nor a queue with elements, in their order: what wait() waits for.
  std::vector<std::string> missing(std::span<const std::string> keys) const;
  // Those of `keys` that are no key: what get() and multi_get() wait for.
  std::vector<std::string> missing_values(std::span<const std::string> keys) const;

  void clear();

 private:
  // Counts an entry that grows from `before` bytes to `after`.
  void count(const std::string& key, std::size_t before, std::size_t after);

  const std::size_t max_bytes_;
  std::size_t bytes_ = 0;
  std::unordered_map<std::string, Value> values_;
  std::unordered_map<std::string, std::deque<Value>> queues_;  // holds no empty queue
};

// These throw InvalidArgument that begins with `operation` ("set", "queue_pop").
void require_key(const char* operation, const std::string& key);
void require_keys(const char* operation, std::span<const std::string> keys);
void require_value(const char* operation, const Store::Value& value);
void require_pairs(const char* operation, std::span<const std::string> keys, std::span<const Store::Value> values);
void require_timeout(const char* operation, Milliseconds timeout);

// A key as it may stand in a message: quoted, cut after 100 bytes, unprintable bytes as \xNN.
std::string quote(std::string_view key);
// 'a', 'b' and 3 more
std::string quote_list(std::span<const std::string> keys);

// What a TimeoutError of `operation` says; `store` describes the store ("FileStore /tmp/rendezvous").
std::string missing_message(std::string_view store, std::string_view operation, std::span<const std::string> missing,
                            Milliseconds timeout);

}  // namespace gradwire::store_internal
