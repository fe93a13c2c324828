// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/store/hash_store.h"

#include <utility>

#include "gradwire/base/error.h"
#include "gradwire/base/interrupt.h"
#include "gradwire/base/mutex.h"
#include "gradwire/store/key_value_map_internal.h"
#include "gradwire/store/process_bound_internal.h"

namespace gradwire {

using store_internal::KeyValueMap;
using store_internal::require_key;
using store_internal::require_keys;
using store_internal::require_value;

namespace {

struct Shared {
  Mutex mutex;
  ConditionVariable changed;
  KeyValueMap map GRADWIRE_GUARDED_BY(mutex);
};

// Sleeps until the data may have changed. Throws TimeoutError that names `missing` when `deadline` has passed, and
// AbortedError where this thread is interrupted.
void wait_for_change(Shared& shared, MutexLock& lock, const char* operation, std::span<const std::string> missing,
                     Deadline deadline, Milliseconds timeout)
    GRADWIRE_REQUIRES(shared.mutex) GRADWIRE_NO_THREAD_SAFETY_ANALYSIS {
  if (deadline.expired()) {
    throw TimeoutError(store_internal::missing_message("HashStore", operation, missing, timeout));
  }
  if (interrupt_check() == nullptr) {
    shared.changed.wait_until(lock, deadline.point());
    return;
  }
  const auto until = deadline.earlier(Deadline::after(kInterruptLook)).point();
  if (shared.changed.wait_until(lock, until) == std::cv_status::no_timeout) return;
  // Handlers of signals may use this store.
  lock.unlock();
  throw_if_interrupted("HashStore");
  lock.lock();
}

}  // namespace

struct HashStore::Impl {
  explicit Impl(std::shared_ptr<Shared> data) : shared("this HashStore", std::move(data)) {}

  // Calls `action` with the map and wakes those who wait for a change.
  template <class Action>
  void change(const Action& action) {
    Shared& data = *shared.get();
    const MutexLock lock(data.mutex);
    action(data.map);
    data.changed.notify_all();
  }

  std::vector<Value> values_of(const char* operation, std::span<const std::string> keys, Milliseconds limit) {
    require_keys(operation, keys);
    Shared& data = *shared.get();
    const Deadline deadline = Deadline::after(limit);
    MutexLock lock(data.mutex);
    for (;;) {
      const auto missing = data.map.missing_values(keys);
      if (missing.empty()) break;
      wait_for_change(data, lock, operation, missing, deadline, limit);
    }
    std::vector<Value> values;
    values.reserve(keys.size());
    for (const std::string& key : keys) values.push_back(*data.map.find(key));
    return values;
  }

  Value pop(const char* operation, const std::string& queue, Milliseconds limit) {
    require_key(operation, queue);
    store_internal::require_timeout(operation, limit);
    Shared& data = *shared.get();
    const Deadline deadline = Deadline::after(limit);
    MutexLock lock(data.mutex);
    for (;;) {
      if (auto value = data.map.pop(queue)) return *std::move(value);
      wait_for_change(data, lock, operation, std::span(&queue, 1), deadline, limit);
    }
  }

  store_internal::ProcessBound<Shared> shared;
};

HashStore::HashStore() : HashStore(std::make_unique<Impl>(std::make_shared<Shared>())) {}

HashStore::HashStore(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

HashStore::~HashStore() = default;

void HashStore::set(const std::string& key, const Value& value) {
  require_key("set", key);
  require_value("set", value);
  impl_->change([&](KeyValueMap& map) { map.set(key, value); });
}

Store::Value HashStore::get(const std::string& key) {
  return std::move(impl_->values_of("get", std::span(&key, 1), timeout()).front());
}

std::int64_t HashStore::add(const std::string& key, std::int64_t amount) {
  require_key("add", key);
  std::int64_t sum = 0;
  impl_->change([&](KeyValueMap& map) { sum = map.add(key, amount); });
  return sum;
}

Store::Value HashStore::compare_set(const std::string& key, const Value& expected, const Value& desired) {
  require_key("compare_set", key);
  require_value("compare_set", desired);
  Value value;
  impl_->change([&](KeyValueMap& map) { value = map.compare_set(key, expected, desired).value; });
  return value;
}

void HashStore::wait(std::span<const std::string> keys, Milliseconds timeout) {
  require_keys("wait", keys);
  store_internal::require_timeout("wait", timeout);
  Shared& shared = *impl_->shared.get();
  const Deadline deadline = Deadline::after(timeout);
  MutexLock lock(shared.mutex);
  for (;;) {
    const auto missing = shared.map.missing(keys);
    if (missing.empty()) return;
    wait_for_change(shared, lock, "wait", missing, deadline, timeout);
  }
}

bool HashStore::check(std::span<const std::string> keys) {
  require_keys("check", keys);
  Shared& shared = *impl_->shared.get();
  MutexLock lock(shared.mutex);
  return shared.map.missing(keys).empty();
}

bool HashStore::delete_key(const std::string& key) {
  require_key("delete_key", key);
  Shared& shared = *impl_->shared.get();
  MutexLock lock(shared.mutex);
  return shared.map.remove(key);
}

std::int64_t HashStore::num_keys() {
  Shared& shared = *impl_->shared.get();
  MutexLock lock(shared.mutex);
  return shared.map.num_keys();
}

std::vector<std::string> HashStore::list_keys() {
  Shared& shared = *impl_->shared.get();
  MutexLock lock(shared.mutex);
  const auto keys = shared.map.keys_after({});
  return {keys.begin(), keys.end()};
}

void HashStore::append(const std::string& key, const Value& value) {
  require_key("append", key);
  require_value("append", value);
  impl_->change([&](KeyValueMap& map) { map.append(key, value); });
}

std::vector<Store::Value> HashStore::multi_get(std::span<const std::string> keys) {
  return impl_->values_of("multi_get", keys, timeout());
}

void HashStore::multi_set(std::span<const std::string> keys, std::span<const Value> values) {
  store_internal::require_pairs("multi_set", keys, values);
  impl_->change([&](KeyValueMap& map) {
    for (std::size_t i = 0; i < keys.size(); ++i) map.set(keys[i], values[i]);
  });
}

void HashStore::queue_push(const std::string& queue, const Value& value) {
  require_key("queue_push", queue);
  require_value("queue_push", value);
  impl_->change([&](KeyValueMap& map) { map.push(queue, value); });
}

Store::Value HashStore::queue_pop(const std::string& queue) { return impl_->pop("queue_pop", queue, timeout()); }

Store::Value HashStore::queue_pop_within(const std::string& queue, Milliseconds limit) {
  return impl_->pop("queue_pop_within", queue, limit);
}

std::int64_t HashStore::queue_length(const std::string& queue) {
  require_key("queue_length", queue);
  Shared& shared = *impl_->shared.get();
  MutexLock lock(shared.mutex);
  return shared.map.queue_length(queue);
}

void HashStore::set_timeout(Milliseconds timeout) {
  store_internal::require_timeout("set_timeout", timeout);
  timeout_.store(timeout, std::memory_order_relaxed);
}

std::shared_ptr<Store> HashStore::clone() {
  auto copy = std::make_shared<HashStore>(std::make_unique<Impl>(impl_->shared.get()));
  copy->set_timeout(timeout());
  return copy;
}

}  // namespace gradwire
