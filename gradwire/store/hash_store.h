// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// A store in the memory of one process, for ranks that are threads of that process.
#pragma once

#include <atomic>
#include <memory>

#include "gradwire/store/store.h"

namespace gradwire {

// A HashStore and all handles that clone() makes share the data; the last handle releases the data. A call that waits
// does not delay other calls. In a forked child every method that
// reaches the data throws InvalidArgument; destroying the object there is safe. Thread-safe. store.h documents the
// methods.
class HashStore final : public Store {
 public:
  HashStore();
  struct Impl;
  explicit HashStore(std::unique_ptr<Impl> impl);  // for clone() only
  ~HashStore() override;

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
  Milliseconds timeout() const override { return timeout_.load(std::memory_order_relaxed); }
  void set_timeout(Milliseconds timeout) override;
  std::shared_ptr<Store> clone() override;

 private:
  std::unique_ptr<Impl> impl_;
  std::atomic<Milliseconds> timeout_{kDefaultTimeout};
};

}  // namespace gradwire
