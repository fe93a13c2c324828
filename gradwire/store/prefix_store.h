// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// A part of another store, with keys of its own.
#pragma once

#include <memory>
#include <string>

#include "gradwire/store/store.h"

namespace gradwire {

// Puts `prefix` and a slash before every key and queue name, so that several users of one store do not use the same
// keys: the key "k" of PrefixStore("job", s) is the key "job/k" of s. Prefix stores nest. Every method calls the same
// method of the underlying store and throws what that method throws; errors name keys as the underlying store sees
// them. Thread-safe where the underlying store is.
//
// Two methods act on the whole underlying store, as in PyTorch: num_keys() counts all of its keys, and set_timeout()
// changes its timeout for everybody who uses it. clone() clones the underlying store, so the clone has a timeout of its
// own.
class PrefixStore final : public Store {
 public:
  // Shares ownership of `store`. Throws InvalidArgument when `store` is null. With an empty prefix, keys begin with a
  // slash.
  PrefixStore(std::string prefix, std::shared_ptr<Store> store);

  const std::string& prefix() const noexcept { return prefix_; }
  const std::shared_ptr<Store>& underlying() const noexcept { return store_; }

  void set(const std::string& key, const Value& value) override;
  Value get(const std::string& key) override;
  std::int64_t add(const std::string& key, std::int64_t amount) override;
  Value compare_set(const std::string& key, const Value& expected, const Value& desired) override;
  using Store::wait;
  void wait(std::span<const std::string> keys, Milliseconds timeout) override;
  bool check(std::span<const std::string> keys) override;
  bool delete_key(const std::string& key) override;
  std::int64_t num_keys() override;
  std::vector<std::string> list_keys() override;
  void append(const std::string& key, const Value& value) override;
  std::vector<Value> multi_get(std::span<const std::string> keys) override;
  void multi_set(std::span<const std::string> keys, std::span<const Value> values) override;
  void queue_push(const std::string& queue, const Value& value) override;
  Value queue_pop(const std::string& queue) override;
  Value queue_pop_within(const std::string& queue, Milliseconds timeout) override;
  std::int64_t queue_length(const std::string& queue) override;
  Milliseconds timeout() const override;
  void set_timeout(Milliseconds timeout) override;
  std::shared_ptr<Store> clone() override;

 private:
  // Throws InvalidArgument for a key that is empty or too long: with the prefix, the underlying store would accept an
  // empty key.
  std::string full(const char* operation, const std::string& key) const;
  std::vector<std::string> full(const char* operation, std::span<const std::string> keys) const;

  std::string prefix_;
  std::shared_ptr<Store> store_;
};

}  // namespace gradwire
