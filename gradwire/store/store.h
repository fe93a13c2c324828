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

// A key-value map that all ranks of a job can reach, with queues beside the keys.
//
// Keys and values are byte strings: a std::string that may hold any byte, zero included. The store copies them. A queue
// has a name, which follows the rules of keys. Keys and queues are two name spaces: a key and a queue may have the same
// name.
//
// Failure: every method that reaches the data can throw
//   InvalidArgument  the arguments are wrong: an empty key, a key or value that is too long, a negative timeout, lists
//                    of different lengths; nothing was changed. gradwire's own stores also throw it in a forked child.
//   StoreError       the store failed or is gone, or refused the change
//   TimeoutError     a key or an element for which the method waits did not come in time; the message names the missing
//                    keys
//   AbortedError     the thread was interrupted (base/interrupt.h) while it waited; of gradwire's own stores
// The store stays usable after an InvalidArgument, and after the TimeoutError of a method that waits for keys.
//
// Threads: all methods may be called from any thread. In an implementation with a single connection, a call that waits
// may delay other calls on the same object; clone() returns an independent handle.
class Store {
 public:
  using Value = std::string;  // any bytes, also zero bytes

  // The longest key and the longest value, in bytes. A store is for addresses and settings.
  static constexpr std::size_t kMaxKeyBytes = 64 * 1024;
  static constexpr std::size_t kMaxValueBytes = 16 * 1024 * 1024;

  virtual ~Store() = default;

  // Sets `key` to `value`, whether or not the key is present. Wakes the calls that wait for the key.
  virtual void set(const std::string& key, const Value& value) = 0;

  // Returns the value of `key`. Waits up to timeout() for the key to be set.
  virtual Value get(const std::string& key) = 0;

  // Adds `amount` to the decimal number that `key` holds, and returns the sum. An absent key counts as 0. Atomic.
  // Throws StoreError, and changes nothing, when the key holds something else or the sum does not fit 64 bits.
  virtual std::int64_t add(const std::string& key, std::int64_t amount) = 0;

  // Sets `key` to `desired` if the key holds `expected`, or if the key is absent and `expected` is empty. Atomic.
  // Returns the value that the key holds afterwards. If the key is absent and `expected` is not empty, nothing is set
  // and `expected` is returned, as in PyTorch.
  virtual Value compare_set(const std::string& key, const Value& expected, const Value& desired) = 0;

  // Waits until every name in `keys` is a key or a queue with elements. Throws TimeoutError after `timeout` (without
  // the argument: after timeout()); a timeout of 0 checks once.
  virtual void wait(std::span<const std::string> keys, Milliseconds timeout) = 0;
  void wait(std::span<const std::string> keys) { wait(keys, timeout()); }

  // Returns whether every name in `keys` is a key or a queue with elements now. Does not wait.
  virtual bool check(std::span<const std::string> keys) = 0;

  // Removes `key`, and returns whether the key was present. Queues are not removed.
  virtual bool delete_key(const std::string& key) = 0;

  // Returns the number of keys. Queues do not count, nor do keys that an implementation needs for itself.
  virtual std::int64_t num_keys() = 0;

  // Returns the keys, in the order of their bytes; no queues. A store with a prefix lists the keys that begin with the
  // prefix, without the prefix. A key that is set or removed during the call may or may not be among them. Default, for
  // classes that have no such call: throws UnsupportedError.
  virtual std::vector<std::string> list_keys();

  // Appends `value` to the value of `key`. An absent key counts as empty. Atomic. Throws StoreError, and changes
  // nothing, when the result would be longer than kMaxValueBytes.
  virtual void append(const std::string& key, const Value& value) = 0;

  // Returns the values of `keys`, in their order. Waits up to timeout() for all of them. One round trip where the
  // implementation can.
  virtual std::vector<Value> multi_get(std::span<const std::string> keys) = 0;

  // Sets keys[i] to values[i]. One round trip where the implementation can. Not atomic as a whole: when the call
  // throws, some keys may be set.
  virtual void multi_set(std::span<const std::string> keys, std::span<const Value> values) = 0;

  // Appends an element to a queue. The first push makes the queue.
  virtual void queue_push(const std::string& queue, const Value& value) = 0;

  // Removes the first element of a queue and returns the element. Each element goes to exactly one call. Waits up to
  // timeout() for an element.
  virtual Value queue_pop(const std::string& queue) = 0;

  // The same with a limit of its own: throws TimeoutError when no element came within `timeout`; 0 looks once and does
  // not wait. Default, for classes that have no such call: throws when queue_length() is 0 for so long, and then calls
  // queue_pop(), which waits for longer where another client takes the element in between.
  virtual Value queue_pop_within(const std::string& queue, Milliseconds timeout);

  // Returns the number of elements; 0 for a queue that nobody has pushed to. Does not wait.
  virtual std::int64_t queue_length(const std::string& queue) = 0;

  // The longest time that get(), multi_get(), queue_pop() and wait() without a timeout wait for a key or an element.
  // The default is kDefaultTimeout (base/deadline.h). set_timeout() throws InvalidArgument for a negative timeout.
  virtual Milliseconds timeout() const = 0;
  virtual void set_timeout(Milliseconds timeout) = 0;

  // Returns an independent handle on the same data, with this handle's timeout(). A call that waits on one handle does
  // not delay calls on the other.
  virtual std::shared_ptr<Store> clone() = 0;
};

}  // namespace gradwire
