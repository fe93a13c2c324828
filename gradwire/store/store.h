// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The rendezvous store: a small key-value map through which ranks find each other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "gradwire/base/deadline.h"

namespace gradwire {

// Keys and values are byte strings (a std::string that may hold any byte, zero included). All methods are thread-safe,
// but a method that waits may hold others of the same object up where the implementation has one connection; clone()
// gives an independent handle.
//
// Every method throws StoreError when the store failed or is gone, TimeoutError (naming the missing keys) when what it
// waits for did not come within its time, InvalidArgument for arguments that no store takes (an empty key, a negative
// count).
class Store {
 public:
  using Value = std::string;

  // More than that is refused with InvalidArgument, before anything is sent or changed. A store is for addresses and
  // settings.
  static constexpr std::size_t kMaxKeyBytes = 64 * 1024;
  static constexpr std::size_t kMaxValueBytes = 16 * 1024 * 1024;

  virtual ~Store() = default;

  // Sets `key`. Wakes those who wait for it.
  virtual void set(const std::string& key, const Value& value) = 0;

  // The value of `key`; waits for it up to timeout().
  virtual Value get(const std::string& key) = 0;

  // Adds `amount` to the decimal number that `key` holds (an absent key counts as 0) and returns the new number;
  // atomic. Throws StoreError when the key holds something else.
  virtual std::int64_t add(const std::string& key, std::int64_t amount) = 0;

  // If `key` holds `expected`, or is absent and `expected` is empty, sets it to `desired`; atomic. Returns what the key
  // holds afterwards; for an absent key and a non-empty `expected` that is `expected` (as in PyTorch) and nothing is
  // set.
  virtual Value compare_set(const std::string& key, const Value& expected, const Value& desired) = 0;

  // Waits until all keys are there, up to `timeout`.
  virtual void wait(std::span<const std::string> keys, Milliseconds timeout) = 0;
  void wait(std::span<const std::string> keys) { wait(keys, timeout()); }

  // Whether all keys are there now.
  virtual bool check(std::span<const std::string> keys) = 0;

  // Removes `key`; whether it was there.
  virtual bool delete_key(const std::string& key) = 0;

  // How many keys there are. Keys that an implementation needs for itself do not count.
  virtual std::int64_t num_keys() = 0;

  // Appends to the value of `key`; an absent key counts as empty. Atomic.
  virtual void append(const std::string& key, const Value& value) = 0;

  // get() and set() of several keys in one round trip where the implementation can. multi_set is not atomic as a whole.
  virtual std::vector<Value> multi_get(std::span<const std::string> keys) = 0;
  virtual void multi_set(std::span<const std::string> keys, std::span<const Value> values) = 0;

  // Queues: first in, first out; each element goes to exactly one pop. pop waits up to timeout(). A queue is a name
  // space of its own beside the keys, but check() and wait() see a non-empty queue as present.
  virtual void queue_push(const std::string& queue, const Value& value) = 0;
  virtual Value queue_pop(const std::string& queue) = 0;
  virtual std::int64_t queue_length(const std::string& queue) = 0;

  // How long get, wait, queue_pop wait at most. kDefaultTimeout (from base/deadline.h) unless set.
  virtual Milliseconds timeout() const = 0;
  virtual void set_timeout(Milliseconds timeout) = 0;

  // An independent handle on the same data: waiting on one does not hold up the other. Starts with this one's
  // timeout().
  virtual std::shared_ptr<Store> clone() = 0;
};

}  // namespace gradwire
