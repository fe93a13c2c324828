// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// A base for stores that do something around the calls of another store.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "gradwire/store/store.h"

namespace gradwire {

// Every method that reaches the data goes through forward(), and calls the same method of the other store there. A
// subclass says in forward() what happens around a call, and implements clone(). timeout() and set_timeout() are those
// of the other store. Thread-safe where the other store and forward() are.
class ForwardingStore : public Store {
 public:
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
  Milliseconds timeout() const override { return store_->timeout(); }
  void set_timeout(Milliseconds timeout) override { store_->set_timeout(timeout); }

  // The other store.
  const std::shared_ptr<Store>& underlying() const noexcept { return store_; }

 protected:
  // Shares the ownership of `store`. Throws InvalidArgument for a null store.
  explicit ForwardingStore(std::shared_ptr<Store> store);

  // Runs `call` on underlying(), never, once or several times; what the last run does is the result of the method. An
  // implementation that does not run it throws.
  virtual void forward(const std::function<void(Store& store)>& call) = 0;

 private:
  template <class Call>
  auto result_of(const Call& call);

  const std::shared_ptr<Store> store_;
};

}  // namespace gradwire
