// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Store, from which Python classes may derive.
#pragma once

#include <pybind11/trampoline_self_life_support.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "binding.h"
#include "gradwire/base/deadline.h"
#include "gradwire/base/error.h"
#include "gradwire/base/log.h"
#include "gradwire/base/process_identity.h"
#include "gradwire/base/strings.h"
#include "gradwire/store/key_value_map_internal.h"
#include "gradwire/store/store.h"
#include "store_waits.h"

namespace gradwire::python {

// A store in Python: a class that has these methods.
class PyStore final : public Store, public py::trampoline_self_life_support {
 public:
  void set(const std::string& key, const Value& value) override { call("set", key, Bytes{value}); }
  Value get(const std::string& key) override { return call_for<Value>("get", key); }
  std::int64_t add(const std::string& key, std::int64_t amount) override {
    return call_for<std::int64_t>("add", key, amount);
  }
  Value compare_set(const std::string& key, const Value& expected, const Value& desired) override {
    return call_for<Value>("compare_set", key, Bytes{expected}, Bytes{desired});
  }
  void wait(std::span<const std::string> keys, Milliseconds timeout) override {
    call("wait", Keys(keys.begin(), keys.end()), timeout);
  }
  bool check(std::span<const std::string> keys) override {
    return call_for<bool>("check", Keys(keys.begin(), keys.end()));
  }
  bool delete_key(const std::string& key) override { return call_for<bool>("delete_key", key); }
  std::int64_t num_keys() override { return call_for<std::int64_t>("num_keys"); }
  Keys list_keys() override { return call_for<Keys>("list_keys"); }
  void append(const std::string& key, const Value& value) override {
    if (has("append")) return call("append", key, Bytes{value});
    // compare_set() alone does not tell what this client stored from the same bytes that another one stored.
    const Turn turn(*this, concat(key, "/append"));
    const Keys keys{key};
    // Without check() the key counts as absent at first, as in PyTorch; get() might wait for it.
    Value before = has("check") && check(keys) ? get(key) : Value();
    while (true) {
      const Value now = compare_set(key, before, before + value);
      if (now == before + value) return;
      before = now;  // another client has set it
    }
  }
  std::vector<Value> multi_get(std::span<const std::string> keys) override {
    if (has("multi_get")) return call_for<std::vector<Value>>("multi_get", Keys(keys.begin(), keys.end()));
    std::vector<Value> values;
    for (const std::string& key : keys) values.push_back(get(key));
    return values;
  }
  void multi_set(std::span<const std::string> keys, std::span<const Value> values) override {
    if (has("multi_set")) return call("multi_set", Keys(keys.begin(), keys.end()), ManyBytes{values});
    for (std::size_t i = 0; i < keys.size(); ++i) set(keys[i], values[i]);
  }
  void queue_push(const std::string& queue, const Value& value) override { call("queue_push", queue, Bytes{value}); }
  Value queue_pop(const std::string& queue) override { return call_for<Value>("queue_pop", queue); }
  Value queue_pop_within(const std::string& queue, Milliseconds timeout) override {
    if (has("queue_len")) return Store::queue_pop_within(queue, timeout);
    const Keys keys{queue};
    if (!check(keys)) wait(keys, timeout);
    return queue_pop(queue);
  }
  std::int64_t queue_length(const std::string& queue) override { return call_for<std::int64_t>("queue_len", queue); }
  Milliseconds timeout() const override { return timeout_; }
  void set_timeout(Milliseconds timeout) override { timeout_ = timeout; }
  std::shared_ptr<Store> clone() override { return call_for<std::shared_ptr<Store>>("clone"); }

  bool has_extended_api() const {
    if (has("has_extended_api")) return call_for<bool>("has_extended_api");
    return has("append") && has("multi_get") && has("multi_set");
  }
  bool can_wait() const { return has("check") && has("wait"); }

 private:
  // Held by one client at a time: a word of its own in the value of a key, which is empty otherwise.
  class Turn final {
   public:
    // Throws TimeoutError when another client holds the turn for longer than the store's timeout.
    Turn(PyStore& store, std::string key) : store_(store), key_(std::move(key)) {
      try {
        take();
      } catch (...) {
        give_back();  // Ctrl-C may come after the store has the word
        throw;
      }
    }
    ~Turn() { give_back(); }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

   private:
    void take() {
      const Deadline deadline = Deadline::after(store_.timeout());
      while (store_.compare_set(key_, "", word_) != word_) {
        if (deadline.expired()) {
          throw TimeoutError(concat("append: another client has held the key ", store_internal::quote(key_), " for ",
                                    store_.timeout().count(), " ms; if it has ended, delete that key"));
        }
        std::this_thread::sleep_for(Milliseconds(1));
        raise_signals();
      }
    }
    void give_back() noexcept {
      std::string error;
      for (int attempt = 0; attempt < 2; ++attempt) {
        try {
          store_.compare_set(key_, word_, "");
          return;
        } catch (const std::exception& problem) {  // Ctrl-C, for example
          error = problem.what();
        }
      }
      log::warn(concat("append: the key ", store_internal::quote(key_), " stays held: ", error));
    }
    static std::string next_word() {
      static std::atomic<std::uint64_t> words{0};
      return concat(process_identity(), "/", words.fetch_add(1));
    }
    PyStore& store_;
    const std::string key_;
    const std::string word_ = next_word();
  };

  // A value becomes bytes, a key str.
  struct Bytes {
    const Value& value;
  };
  template <class T>
  static const T& argument(const T& value) {
    return value;
  }
  static py::bytes argument(const Bytes& bytes) { return bytes.value; }
  struct ManyBytes {
    std::span<const Value> values;
  };
  static py::list argument(const ManyBytes& many) {
    py::list out;
    for (const Value& value : many.values) out.append(py::bytes(value));
    return out;
  }

  template <class... Args>
  void call(const char* name, const Args&... args) {
    in_python([&] { method(name)(argument(args)...); });
  }
  template <class Result, class... Args>
  Result call_for(const char* name, const Args&... args) const {
    return in_python([&] { return method(name)(argument(args)...).template cast<Result>(); });
  }
  bool has(const char* name) const {
    return in_python([&] { return static_cast<bool>(py::get_override(static_cast<const Store*>(this), name)); });
  }
  py::function method(const char* name) const {
    if (py::function found = py::get_override(static_cast<const Store*>(this), name)) return found;
    throw UnsupportedError(std::string("this store, a Python class, has no ") + name + "(); override it");
  }

  Milliseconds timeout_ = kDefaultTimeout;
};

}  // namespace gradwire::python
