// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// A rank that is killed while it uses its store.
#pragma once

#include <csignal>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "gradwire/store/store.h"

namespace gradwire::test_support {

// A store that ends its process at the k-th call, counted from the construction or from die_at().
class DeadlyStore final : public Store {
 public:
  DeadlyStore(std::shared_ptr<Store> store, int calls) : store_(std::move(store)), left_(calls) {}
  void die_at(int call) { left_ = call; }

  void set(const std::string& key, const Value& value) override { next().set(key, value); }
  Value get(const std::string& key) override { return next().get(key); }
  std::int64_t add(const std::string& key, std::int64_t amount) override { return next().add(key, amount); }
  Value compare_set(const std::string& key, const Value& expected, const Value& desired) override {
    return next().compare_set(key, expected, desired);
  }
  void wait(std::span<const std::string> keys, Milliseconds timeout) override { next().wait(keys, timeout); }
  bool check(std::span<const std::string> keys) override { return next().check(keys); }
  bool delete_key(const std::string& key) override { return next().delete_key(key); }
  std::int64_t num_keys() override { return next().num_keys(); }
  std::vector<std::string> list_keys() override { return next().list_keys(); }
  void append(const std::string& key, const Value& value) override { next().append(key, value); }
  std::vector<Value> multi_get(std::span<const std::string> keys) override { return next().multi_get(keys); }
  void multi_set(std::span<const std::string> keys, std::span<const Value> values) override {
    next().multi_set(keys, values);
  }
  void queue_push(const std::string& queue, const Value& value) override { next().queue_push(queue, value); }
  Value queue_pop(const std::string& queue) override { return next().queue_pop(queue); }
  std::int64_t queue_length(const std::string& queue) override { return next().queue_length(queue); }
  Milliseconds timeout() const override { return store_->timeout(); }
  void set_timeout(Milliseconds timeout) override { store_->set_timeout(timeout); }
  std::shared_ptr<Store> clone() override { return store_->clone(); }

 private:
  Store& next() {
    if (--left_ == 0) ::raise(SIGKILL);
    return *store_;
  }

  const std::shared_ptr<Store> store_;
  int left_;
};

}  // namespace gradwire::test_support
