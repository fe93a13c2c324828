// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "store_waits.h"

#include <unistd.h>

#include <torch/csrc/Exceptions.h>

#include <algorithm>
#include <optional>
#include <span>
#include <thread>

#include "binding.h"
#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "gradwire/store/key_value_map_internal.h"

namespace gradwire::python {
namespace {

// How long a wait whose time is up asks the server what is missing.
constexpr Milliseconds kLastQuestion{1000};

// Those of `keys` that are not there; all, where a server that stands still does not say so.
Keys missing_of(Store& store, const Keys& keys) {
  const Deadline deadline = Deadline::after(kLastQuestion);
  Keys missing;
  for (const std::string& key : keys) {
    try {
      store.wait(std::span(&key, 1), Milliseconds(0));
    } catch (const TimeoutError&) {
      missing.push_back(key);
    }
    if (deadline.expired()) return keys;
  }
  return missing.empty() ? keys : missing;
}

// The value of `key`, if there is one now; one request. A queue of that name is none.
std::optional<std::string> value_now(Store& store, const std::string& key) {
  const std::string other = "gradwire: a value that nobody sets";
  std::string value = store.compare_set(key, other, other);  // changes nothing
  if (value == other) return std::nullopt;
  return value;
}

}  // namespace

void raise_signals() {
  if (::gettid() != ::getpid() || !may_take_lock()) return;
  const py::gil_scoped_acquire lock;
  if (PyErr_CheckSignals() != 0) throw py::error_already_set();
}

[[noreturn]] void throw_late(const char* operation, Milliseconds timeout, const Keys& keys) {
  throw TimeoutError(concat(operation, ": timeout after ", timeout.count(), " ms of waiting for ",
                            store_internal::quote_list(keys), ", which no rank has set"));
}

void wait_for(Store& store, const Keys& keys, Milliseconds timeout, const char* operation) {
  const Deadline deadline = Deadline::after(timeout);
  while (true) {
    const Milliseconds left = deadline.remaining();
    try {
      store.wait(keys, std::min(left, kSignalLook));
      return;
    } catch (const TimeoutError&) {
      if (timeout <= kSignalLook) throw;  // the store's own words
      if (left <= kSignalLook) throw_late(operation, timeout, missing_of(store, keys));
    }
    raise_signals();
  }
}

std::string wait_for_value(Store& store, const std::string& key) {
  if (auto value = value_now(store, key)) return *std::move(value);
  const Milliseconds timeout = store.timeout();
  const Deadline deadline = Deadline::after(timeout);
  wait_for(store, {key}, timeout, "get");
  while (true) {
    if (auto value = value_now(store, key)) return *std::move(value);
    // wait() takes a queue of that name for the key.
    const Milliseconds left = deadline.remaining();
    if (left == Milliseconds(0)) throw_late("get", timeout, {key});
    std::this_thread::sleep_for(std::min(left, kSignalLook));
    raise_signals();
  }
}

}  // namespace gradwire::python
