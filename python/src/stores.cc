// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The rendezvous stores. Values are bytes in Python; keys and values may be given as str, too.
#include <algorithm>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "binding.h"
#include "gradwire/base/deadline.h"
#include "gradwire/base/environment.h"
#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "gradwire/store/file_store.h"
#include "gradwire/store/hash_store.h"
#include "gradwire/store/key_value_map_internal.h"
#include "gradwire/store/prefix_store.h"
#include "gradwire/store/secret.h"
#include "gradwire/store/tcp_store.h"
#include "py_store.h"
#include "store_waits.h"

namespace gradwire::python {
namespace {

[[noreturn]] void throw_queue_empty(const std::string& queue) {
  const py::gil_scoped_acquire lock;
  const py::object kind = py::module_::import("gradwire._errors").attr("QueueEmptyError");
  PyErr_SetString(kind.ptr(), concat("the queue ", store_internal::quote(queue), " is empty").c_str());
  throw py::error_already_set();
}

py::bytes pop(Store& store, const std::string& queue, bool block) {
  std::string value;
  {
    const WithoutLock unlocked;
    const Milliseconds timeout = block ? store.timeout() : Milliseconds(0);
    const Deadline deadline = Deadline::after(timeout);
    for (bool has_value = false; !has_value;) {
      const Milliseconds left = deadline.remaining();
      try {
        value = store.queue_pop_within(queue, std::min(left, kSignalLook));
        has_value = true;
      } catch (const TimeoutError&) {
        if (!block) throw_queue_empty(queue);
        if (left <= kSignalLook) throw_late("queue_pop", timeout, {queue});
      }
      if (!has_value) raise_signals();
    }
  }
  return value;
}

py::bytes compare_set(Store& store, const std::string& key, const std::string& expected, const std::string& desired) {
  std::string value;
  {
    const WithoutLock unlocked;
    value = store.compare_set(key, expected, desired);
  }
  return value;
}

// The Python class that keeps the data, also under prefixes; null where the data is in C++.
const PyStore* python_store_of(const Store& store) {
  if (const auto* part = dynamic_cast<const PrefixStore*>(&store)) return python_store_of(*part->underlying());
  return dynamic_cast<const PyStore*>(&store);
}

// As PyTorch's: what a store under a prefix says, and for a Python class whether it has the methods.
bool has_extended_api(const Store& store) {
  const PyStore* of_python = python_store_of(store);
  return of_python == nullptr || of_python->has_extended_api();
}

// Whether keys can be waited for before they are read. A Python class need not have what that takes; its get() waits.
bool can_wait(const Store& store) {
  const PyStore* of_python = python_store_of(store);
  return of_python == nullptr || of_python->can_wait();
}

py::bytes get(Store& store, const std::string& key) {
  std::string value;
  {
    const WithoutLock unlocked;
    if (python_store_of(store) == nullptr) {
      value = wait_for_value(store, key);
    } else {
      if (can_wait(store) && !store.check({&key, 1})) wait_for(store, {key}, store.timeout(), "get");
      value = store.get(key);
    }
  }
  return value;
}

std::vector<py::bytes> multi_get(Store& store, const Keys& keys) {
  std::vector<std::string> values;
  {
    const WithoutLock unlocked;
    if (can_wait(store) && !store.check(keys)) wait_for(store, keys, store.timeout(), "multi_get");
    values = store.multi_get(keys);
  }
  return {values.begin(), values.end()};
}

// Returns when `world_size` callers of one `key` have come. The next so many callers are a barrier of their own.
void barrier(Store& store, const std::string& key, std::int64_t world_size, std::optional<Milliseconds> timeout) {
  if (world_size < 1) throw InvalidArgument(concat("barrier: a world size of ", world_size, " is not positive"));
  const std::int64_t number = store.add(concat(key, "/came"), 1);
  const std::int64_t round = (number - 1) / world_size;
  const std::string complete = concat(key, "/complete/", round);
  // The key stays: a caller that has not looked yet may be none of the next round's.
  if (number == (round + 1) * world_size) return store.set(complete, "1");
  const Milliseconds limit = timeout.value_or(store.timeout());
  try {
    wait_for(store, {complete}, limit, "barrier");
  } catch (const TimeoutError&) {
    // This caller's own count is there: where it is not seen, the server stands still.
    const std::string count = concat(key, "/came");
    store.wait(std::span(&count, 1), Milliseconds(0));
    const std::int64_t came = store.add(count, 0) - round * world_size;
    if (came >= world_size) return;  // the last one came at that moment
    throw TimeoutError(concat("barrier timeout: after ", limit.count(), " ms ", came, " of ", world_size,
                              " callers had come to the barrier ", store_internal::quote(key),
                              "; take another key for the next barrier"));
  }
}

using StoreClass = py::class_<Store, PyStore, py::smart_holder>;

void bind_base(py::module_& module) {
  StoreClass(module, "Store", EndsUnlocked(), R"(A small key-value map through which ranks find each other.

Keys and values are byte strings; values come back as bytes. Every method raises StoreError when the store failed or is
gone, TimeoutError (naming the missing keys) when what it waits for did not come within its time, InvalidArgument for
arguments that no store takes. A class may derive from Store; it must have set, get, add, compare_set, wait and check.
append, multi_get and multi_set are made of these where the class has none.)")
      .def(py::init<>())
      .def("set", &Store::set, py::arg("key"), py::arg("value"), Unlocked(), "Sets `key`.")
      .def("get", &get, py::arg("key"), "The value of `key`; waits for it up to `timeout`.")
      .def("add", &Store::add, py::arg("key"), py::arg("amount"), Unlocked(),
           "Adds to the decimal number that `key` holds (an absent key: 0) and returns the new one; atomic.")
      .def("compare_set", &compare_set, py::arg("key"), py::arg("expected_value"), py::arg("desired_value"),
           "Sets `key` if it holds `expected_value`, or is absent and that is empty; returns what it holds then.")
      .def(
          "wait", [](Store& self, const Keys& keys) { wait_for(self, keys, self.timeout()); }, py::arg("keys"),
          Unlocked(), "Waits until all keys are there.")
      .def(
          "wait", [](Store& self, const Keys& keys, Milliseconds timeout) { wait_for(self, keys, timeout); },
          py::arg("keys"), py::arg("timeout"), Unlocked())
      .def(
          "check", [](Store& self, const Keys& keys) { return self.check(keys); }, py::arg("keys"), Unlocked(),
          "Whether all keys are there now.")
      .def("delete_key", &Store::delete_key, py::arg("key"), Unlocked(), "Removes `key`; whether it was there.")
      .def("num_keys", &Store::num_keys, Unlocked(), "How many keys there are.")
      .def("list_keys", &Store::list_keys, Unlocked(),
           "The keys in the order of their bytes; under a prefix those with the prefix, without it.")
      .def("append", &Store::append, py::arg("key"), py::arg("value"), Unlocked(),
           "Appends to the value; atomic. For a class without append(), with the help of another key, KEY/append.")
      .def("multi_get", &multi_get, py::arg("keys"), "get() of several keys.")
      .def(
          "multi_set", [](Store& self, const Keys& keys, const Keys& values) { self.multi_set(keys, values); },
          py::arg("keys"), py::arg("values"), Unlocked(), "set() of several keys.")
      .def("queue_push", &Store::queue_push, py::arg("key"), py::arg("value"), Unlocked(), "Appends to a queue.")
      .def("queue_pop", &pop, py::arg("key"), py::arg("block") = true, "Takes the first element; waits for one.")
      .def("queue_len", &Store::queue_length, py::arg("key"), Unlocked(), "How many elements a queue has.")
      .def("barrier", &barrier, py::arg("key"), py::arg("world_size"), py::arg("timeout") = py::none(), Unlocked(),
           "Returns when so many callers have come to the barrier `key`, which may be used again then. Each use leaves "
           "a small key in the store.")
      .def("has_extended_api", &has_extended_api,
           "Whether append, multi_get and multi_set are there: True but for a Python class without them.")
      .def("set_timeout", &Store::set_timeout, py::arg("timeout"), Unlocked(), "How long waiting calls wait at most.")
      .def_property("timeout", &Store::timeout, &Store::set_timeout, "A timedelta; 30 minutes unless set.")
      .def("clone", &Store::clone, Unlocked(), "An independent handle on the same data.");
}

std::shared_ptr<TcpStore> tcp_store(const std::string& host, std::uint16_t port, std::optional<int> world_size,
                                    bool is_master, Milliseconds timeout, bool wait_for_workers, bool multi_tenant,
                                    bool /*use_libuv*/) {
  const WithoutLock unlocked;
  TcpStoreOptions options;
  options.host = host;
  options.port = port;
  options.world_size = world_size.value_or(-1);
  options.is_server = is_master;
  options.timeout = timeout;
  options.wait_for_workers = wait_for_workers;
  options.multi_tenant = multi_tenant;
  options.secret = secret_from_environment([](const char* name) { return environment(name); });
  return std::make_shared<TcpStore>(options);
}

}  // namespace

void bind_stores(py::module_& module) {
  bind_base(module);
  py::class_<HashStore, Store, py::smart_holder>(module, "HashStore", EndsUnlocked(),
                                                 "A store in the memory of one process, for ranks that are threads.")
      .def(py::init<>());
  py::class_<FileStore, Store, py::smart_holder>(
      module, "FileStore", EndsUnlocked(),
      "A store in a file that all ranks can open. Whoever made the file removes it when all ranks are done.")
      .def(py::init<std::string, int>(), py::arg("file_name"), py::arg("world_size") = -1)
      .def_property_readonly("path", &FileStore::path, "The file's.");
  py::class_<TcpStore, Store, py::smart_holder>(
      module, "TCPStore", EndsUnlocked(),
      R"(A client of a server, and with `is_master` the owner of the server, for a trusted network.

port 0, for the server: any free port, which `port` then tells. With a known world size the server's constructor returns
when that many ranks have connected, unless `wait_for_workers` is False. With `multi_tenant`, stores of one process that
serve one port share the server. There is one kind of server: `use_libuv` is
taken for programs written for PyTorch, and either value means this server.)")
      .def(py::init(&tcp_store), py::arg("host_name"), py::arg("port"), py::arg("world_size") = py::none(),
           py::arg("is_master") = false, py::arg_v("timeout", kDefaultTimeout, "timedelta(minutes=30)"),
           py::arg("wait_for_workers") = true, py::arg("multi_tenant") = false, py::kw_only(),
           py::arg("use_libuv") = false)
      .def_property_readonly(
          "libuvBackend", [](const TcpStore&) { return false; }, "False: the server is gradwire's own.")
      .def_property_readonly("host", &TcpStore::host, "The server's.")
      .def_property_readonly("port", &TcpStore::port, "The server's; what the system chose where 0 was asked for.");
  py::class_<PrefixStore, Store, py::smart_holder>(module, "PrefixStore", EndsUnlocked(),
                                                   "Puts `prefix` and a slash before every key of another store.")
      .def(py::init<std::string, std::shared_ptr<Store>>(), py::arg("prefix"), py::arg("store"))
      .def_property_readonly("prefix", &PrefixStore::prefix, "What stands before every key.")
      .def_property_readonly("underlying_store", &PrefixStore::underlying, "The store that keys go to.");
}

}  // namespace gradwire::python
