// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/process_group/c10d/c10d_store.h"
#include "gradwire/process_group/c10d/c10d_store_internal.h"

#include <c10/util/Exception.h>

#include <torch/version.h>
#include <algorithm>
#include <atomic>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"

// PyTorch 2.13 was the first whose stores list their keys.
#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR > 12
#define GRADWIRE_C10D_LISTS_KEYS 1
#else
#define GRADWIRE_C10D_LISTS_KEYS 0
#endif

namespace gradwire {
namespace {

using Bytes = std::vector<std::uint8_t>;

Bytes to_bytes(const std::string& text) { return {text.begin(), text.end()}; }
std::string to_text(const Bytes& bytes) { return {bytes.begin(), bytes.end()}; }

// Runs `call`; what our stores throw becomes what libtorch's throw.
template <class Call>
auto as_c10d(const Call& call) {
  try {
    return call();
  } catch (const TimeoutError& error) {
    C10_THROW_ERROR(DistStoreError, error.what());
  } catch (const StoreError& error) {
    C10_THROW_ERROR(DistStoreError, error.what());
  }
}

class StoreForC10d final : public c10d::Store {
 public:
  explicit StoreForC10d(std::shared_ptr<gradwire::Store> store, std::function<void()> check = nullptr)
      : c10d::Store(store->timeout()), store_(std::move(store)), check_(std::move(check)) {}

  const std::shared_ptr<gradwire::Store>& underlying() const { return store_; }

  using c10d::Store::compareSet;
  using c10d::Store::set;
  using c10d::Store::wait;

  c10::intrusive_ptr<c10d::Store> clone() override {
    return as_c10d([&] {
      auto copy = c10::make_intrusive<StoreForC10d>(store_->clone(), check_);
      copy->setTimeout(timeout_);
      return c10::intrusive_ptr<c10d::Store>(std::move(copy));
    });
  }
  void set(const std::string& key, const Bytes& value) override {
    as_c10d([&] { store_->set(key, to_text(value)); });
  }
  Bytes compareSet(const std::string& key, const Bytes& expected, const Bytes& desired) override {
    return as_c10d([&] { return to_bytes(store_->compare_set(key, to_text(expected), to_text(desired))); });
  }
  Bytes get(const std::string& key) override {
    return as_c10d([&] {
      await({&key, 1});
      return to_bytes(store_->get(key));
    });
  }
  std::int64_t add(const std::string& key, std::int64_t value) override {
    return as_c10d([&] { return store_->add(key, value); });
  }
  bool deleteKey(const std::string& key) override {
    return as_c10d([&] { return store_->delete_key(key); });
  }
  bool check(const std::vector<std::string>& keys) override {
    return as_c10d([&] { return store_->check(keys); });
  }
  std::int64_t getNumKeys() override {
    return as_c10d([&] { return store_->num_keys(); });
  }
#if GRADWIRE_C10D_LISTS_KEYS
  std::vector<std::string> listKeys() override {
    return as_c10d([&] { return store_->list_keys(); });
  }
#endif
  void wait(const std::vector<std::string>& keys) override { wait(keys, timeout_); }
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) override {
    as_c10d([&] { wait_checking(keys, limit_of(timeout)); });
  }
  void append(const std::string& key, const Bytes& value) override {
    as_c10d([&] { store_->append(key, to_text(value)); });
  }
  std::vector<Bytes> multiGet(const std::vector<std::string>& keys) override {
    return as_c10d([&] {
      await(keys);
      std::vector<Bytes> values;
      for (const std::string& value : store_->multi_get(keys)) values.push_back(to_bytes(value));
      return values;
    });
  }
  void multiSet(const std::vector<std::string>& keys, const std::vector<Bytes>& values) override {
    as_c10d([&] {
      std::vector<std::string> texts;
      for (const Bytes& value : values) texts.push_back(to_text(value));
      store_->multi_set(keys, texts);
    });
  }
  bool hasExtendedApi() const override { return true; }
  void queuePush(const std::string& key, const Bytes& value) override {
    as_c10d([&] { store_->queue_push(key, to_text(value)); });
  }
  // Without `block` an empty queue is an error at once.
  Bytes queuePop(const std::string& key, bool block) override {
    return as_c10d([&] {
      return to_bytes(in_slices(block ? limit_of(timeout_) : Milliseconds(0),
                                [&](Milliseconds slice) { return store_->queue_pop_within(key, slice); }));
    });
  }
  std::int64_t queueLen(const std::string& key) override {
    return as_c10d([&] { return store_->queue_length(key); });
  }

 private:
  // get() waits as long as the store underneath does; where this object's timeout is another, it waits here first.
  void await(std::span<const std::string> keys) {
    if (check_ || limit_of(timeout_) != store_->timeout()) wait_checking(keys, limit_of(timeout_));
  }
  // A timeout of ours: c10d takes zero for a wait without end.
  static Milliseconds limit_of(std::chrono::milliseconds timeout) {
    return timeout == c10d::Store::kNoTimeout ? Milliseconds::max() : timeout;
  }
  void wait_checking(std::span<const std::string> keys, Milliseconds timeout) {
    in_slices(timeout, [&](Milliseconds slice) { store_->wait(keys, slice); });
  }
  // Returns what `wait_for` returns, which throws a TimeoutError after the time that it is given. Where there is a
  // check, it is called between slices of the time.
  template <class WaitFor>
  std::invoke_result_t<WaitFor, Milliseconds> in_slices(Milliseconds timeout, const WaitFor& wait_for) {
    constexpr Milliseconds kSlice{100};
    const Deadline deadline = Deadline::after(timeout);
    for (;;) {
      try {
        return wait_for(check_ ? std::min(kSlice, deadline.remaining()) : timeout);
      } catch (const TimeoutError&) {
        if (check_) check_();
        if (!check_ || deadline.expired()) throw;
      }
    }
  }

  std::shared_ptr<gradwire::Store> store_;
  std::function<void()> check_;
};

bool speaks_of_time(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text.find("timeout") != std::string::npos || text.find("timed out") != std::string::npos;
}

// Runs `call` of the store; what libtorch's stores throw becomes what ours throw.
template <class Call>
auto from_c10d_call(const char* operation, const Call& call) {
  try {
    return call();
  } catch (const Error&) {
    throw;
  } catch (const c10::NotImplementedError& error) {
    throw UnsupportedError(concat("c10d store: ", operation, ": ", error.what_without_backtrace()));
  } catch (const c10::Error& error) {
    const std::string what = concat("c10d store: ", operation, ": ", error.what_without_backtrace());
    if (speaks_of_time(what)) throw TimeoutError(what);
    throw StoreError(what);
  } catch (const std::exception& error) {
    const std::string what = concat("c10d store: ", operation, ": ", error.what());
    if (speaks_of_time(what)) throw TimeoutError(what);
    throw StoreError(what);
  }
}

void require_key(const char* operation, const std::string& key) {
  if (key.empty()) throw InvalidArgument(concat("c10d store: ", operation, ": the key is empty"));
}

void require_timeout(const char* operation, Milliseconds timeout) {
  if (timeout.count() < 0)
    throw InvalidArgument(concat("c10d store: ", operation, ": a timeout of ", timeout.count(), " ms"));
}

class StoreOfC10d final : public Store {
 public:
  StoreOfC10d(c10::intrusive_ptr<c10d::Store> store, Milliseconds timeout)
      : store_(std::move(store)), timeout_(timeout) {}

  const c10::intrusive_ptr<c10d::Store>& underlying() const { return store_; }

  void set(const std::string& key, const Value& value) override {
    require_key("set", key);
    from_c10d_call("set", [&] { store_->set(key, to_bytes(value)); });
  }
  Value get(const std::string& key) override {
    require_key("get", key);
    wait(std::span(&key, 1), timeout());
    return from_c10d_call("get", [&] { return to_text(store_->get(key)); });
  }
  std::int64_t add(const std::string& key, std::int64_t amount) override {
    require_key("add", key);
    return from_c10d_call("add", [&] { return store_->add(key, amount); });
  }
  Value compare_set(const std::string& key, const Value& expected, const Value& desired) override {
    require_key("compare_set", key);
    return from_c10d_call("compare_set",
                          [&] { return to_text(store_->compareSet(key, to_bytes(expected), to_bytes(desired))); });
  }
  using Store::wait;
  void wait(std::span<const std::string> keys, Milliseconds timeout) override {
    require_timeout("wait", timeout);
    if (keys.empty()) return;
    if (timeout <= kMoment ? come_within(keys, timeout) : come_to_c10d(keys, timeout)) return;
    std::vector<std::string> missing;
    for (const std::string& key : keys) {
      if (!check({&key, 1})) missing.push_back(key);
    }
    throw TimeoutError(
        concat("c10d store: the keys ", join(missing, ", "), " were not there after ", timeout.count(), " ms"));
  }
  bool check(std::span<const std::string> keys) override {
    return from_c10d_call("check", [&] { return store_->check({keys.begin(), keys.end()}); });
  }
  bool delete_key(const std::string& key) override {
    require_key("delete_key", key);
    return from_c10d_call("delete_key", [&] { return store_->deleteKey(key); });
  }
  std::int64_t num_keys() override {
    return from_c10d_call("num_keys", [&] { return store_->getNumKeys(); });
  }
#if GRADWIRE_C10D_LISTS_KEYS
  std::vector<std::string> list_keys() override {
    std::vector<std::string> keys = from_c10d_call("list_keys", [&] { return store_->listKeys(); });
    std::sort(keys.begin(), keys.end());
    return keys;
  }
#endif
  void append(const std::string& key, const Value& value) override {
    require_key("append", key);
    from_c10d_call("append", [&] { store_->append(key, to_bytes(value)); });
  }
  std::vector<Value> multi_get(std::span<const std::string> keys) override {
    for (const std::string& key : keys) require_key("multi_get", key);
    wait(keys, timeout());
    std::vector<Value> values;
    for (const std::string& key : keys) values.push_back(get(key));
    return values;
  }
  void multi_set(std::span<const std::string> keys, std::span<const Value> values) override {
    if (keys.size() != values.size()) {
      throw InvalidArgument(
          concat("c10d store: multi_set: there are ", values.size(), " values for ", keys.size(), " keys"));
    }
    for (std::size_t i = 0; i < keys.size(); ++i) set(keys[i], values[i]);
  }
  void queue_push(const std::string& queue, const Value& value) override {
    require_key("queue_push", queue);
    from_c10d_call("queue_push", [&] { store_->queuePush(queue, to_bytes(value)); });
  }
  Value queue_pop(const std::string& queue) override { return queue_pop_within(queue, timeout()); }
  Value queue_pop_within(const std::string& queue, Milliseconds timeout) override {
    require_key("queue_pop", queue);
    require_timeout("queue_pop", timeout);
    std::optional<Value> value;
    const auto pops = [&] { return (value = pop_now(queue)).has_value(); };
    if (succeeds_before(Deadline::after(timeout), pops)) return *std::move(value);
    throw TimeoutError(
        concat("c10d store: queue_pop: the queue ", queue, " had no element for ", timeout.count(), " ms"));
  }
  std::int64_t queue_length(const std::string& queue) override {
    require_key("queue_length", queue);
    return from_c10d_call("queue_length", [&] { return store_->queueLen(queue); });
  }
  Milliseconds timeout() const override { return timeout_.load(std::memory_order_relaxed); }
  void set_timeout(Milliseconds timeout) override {
    require_timeout("set_timeout", timeout);
    timeout_.store(timeout, std::memory_order_relaxed);
  }
  std::shared_ptr<Store> clone() override {
    return from_c10d_call("clone", [&] { return std::make_shared<StoreOfC10d>(store_->clone(), timeout()); });
  }

 private:
  // libtorch's TCPStore prints two lines for each wait that ends without the keys, and a rank that looks after the
  // others meanwhile waits for no longer than this at a time.
  static constexpr Milliseconds kMoment{500};
  static constexpr Milliseconds kLongestPause{50};

  // Whether one of the calls of `look` returns true, the last of which is at the deadline.
  template <class Look>
  static bool succeeds_before(Deadline deadline, const Look& look) {
    for (Milliseconds pause{1};; pause = std::min(2 * pause, kLongestPause)) {
      if (look()) return true;
      if (deadline.expired()) return false;
      std::this_thread::sleep_for(std::min(pause, deadline.remaining()));
    }
  }
  // Empty where the queue is, also where another client has just taken its last element.
  std::optional<Value> pop_now(const std::string& queue) {
    if (queue_length(queue) == 0) return std::nullopt;
    return from_c10d_call("queue_pop", [&]() -> std::optional<Value> {
      try {
        return to_text(store_->queuePop(queue, /*block=*/false));
      } catch (const c10::DistQueueEmptyError&) {
        return std::nullopt;
      }
    });
  }
  bool come_within(std::span<const std::string> keys, Milliseconds timeout) {
    const Deadline deadline = Deadline::after(timeout);
    if (check(keys)) return true;
    // Keys that have come stay, mostly, so one key is asked for at a time: many ranks may wait for the keys of all.
    std::size_t here = 0;
    return succeeds_before(deadline, [&] {
      while (here < keys.size() && check(keys.subspan(here, 1))) ++here;
      return here == keys.size();
    });
  }
  bool come_to_c10d(std::span<const std::string> keys, Milliseconds timeout) {
    try {
      from_c10d_call("wait", [&] { store_->wait({keys.begin(), keys.end()}, timeout); });
      return true;
    } catch (const TimeoutError&) {
      return false;
    }
  }

  c10::intrusive_ptr<c10d::Store> store_;
  std::atomic<Milliseconds> timeout_;
};

}  // namespace

c10::intrusive_ptr<c10d::Store> store_to_c10d(std::shared_ptr<Store> store) {
  if (store == nullptr) throw InvalidArgument("store_to_c10d: the store is null");
  if (const auto* wrapped = dynamic_cast<const StoreOfC10d*>(store.get())) return wrapped->underlying();
  return c10::make_intrusive<StoreForC10d>(std::move(store));
}

c10::intrusive_ptr<c10d::Store> internal::store_to_c10d_checking(std::shared_ptr<Store> store,
                                                                 std::function<void()> check) {
  return c10::make_intrusive<StoreForC10d>(std::move(store), std::move(check));
}

std::shared_ptr<Store> store_from_c10d(c10::intrusive_ptr<c10d::Store> store) {
  if (!store) throw InvalidArgument("store_from_c10d: the store is null");
  if (const auto* wrapped = dynamic_cast<const StoreForC10d*>(store.get())) return wrapped->underlying();
  const Milliseconds timeout = store->getTimeout();
  return std::make_shared<StoreOfC10d>(std::move(store), timeout);
}

}  // namespace gradwire
