// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// A job's store whose server may go away for a while and come back.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "gradwire/store/store.h"

namespace gradwire::membership {

// Calls another store. A call that fails because the store is gone is made again until the store is back, for
// `patience` at most; then the call throws the store's StoreError. A call that the store refuses while it answers
// others is not made again. While a call waits, it ends with an AbortedError when the thread is interrupted
// (base/interrupt.h).
//
// For stores whose handles connect again by themselves, as TcpStore's do. The store that is back may be another one
// than before, so only those who can live with that should be patient (Member can). Thread-safe where the other store
// is.
class PatientStore final : public Store {
 public:
  // Shares the ownership of `store`. Throws InvalidArgument for a null store and a negative patience.
  PatientStore(std::shared_ptr<Store> store, Milliseconds patience);

  // The store without patience.
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
  Milliseconds timeout() const override { return store_->timeout(); }
  void set_timeout(Milliseconds timeout) override { store_->set_timeout(timeout); }
  std::shared_ptr<Store> clone() override;

 private:
  template <class Call>
  auto patiently(const Call& call);
  bool answers() const noexcept;

  const std::shared_ptr<Store> store_;
  const Milliseconds patience_;
};

}  // namespace gradwire::membership
