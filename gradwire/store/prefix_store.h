// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// A name space within another store.
#pragma once

#include <memory>
#include <string>

#include "gradwire/store/store.h"

namespace gradwire {

// Puts `prefix` and a slash before every key and queue name, so that several users share one store without meeting: the
// key "k" of PrefixStore("job", s) is the key "job/k" of s. Prefix stores nest. Errors name keys as the underlying
// store sees them.
//
// What differs from a store of its own: num_keys() counts all keys of the underlying store, and the timeout is the
// underlying store's, for all who share it (both as in PyTorch). clone() clones the underlying store, and the clone has
// its own timeout.
class PrefixStore final : public Store {
 public:
  // Shares ownership of `store`. Throws InvalidArgument when it is null. An empty prefix gives keys that begin with a
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
  void append(const std::string& key, const Value& value) override;
  std::vector<Value> multi_get(std::span<const std::string> keys) override;
  void multi_set(std::span<const std::string> keys, std::span<const Value> values) override;
  void queue_push(const std::string& queue, const Value& value) override;
  Value queue_pop(const std::string& queue) override;
  std::int64_t queue_length(const std::string& queue) override;
  Milliseconds timeout() const override;
  void set_timeout(Milliseconds timeout) override;
  std::shared_ptr<Store> clone() override;

 private:
  // Throws InvalidArgument for an empty key, which the prefix would hide from the underlying store.
  std::string full(const char* operation, const std::string& key) const;
  std::vector<std::string> full(const char* operation, std::span<const std::string> keys) const;

  std::string prefix_;
  std::shared_ptr<Store> store_;
};

}  // namespace gradwire
