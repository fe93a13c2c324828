// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/store/forwarding_store.h"

#include <optional>
#include <utility>

#include "gradwire/base/error.h"

namespace gradwire {

ForwardingStore::ForwardingStore(std::shared_ptr<Store> store) : store_(std::move(store)) {
  if (store_ == nullptr) throw InvalidArgument("a store around another store: the other store is null");
}

template <class Call>
auto ForwardingStore::result_of(const Call& call) {
  std::optional<decltype(call(*store_))> result;
  forward([&](Store& store) { result = call(store); });
  return *std::move(result);
}

void ForwardingStore::set(const std::string& key, const Value& value) {
  forward([&](Store& store) { store.set(key, value); });
}
Store::Value ForwardingStore::get(const std::string& key) {
  return result_of([&](Store& store) { return store.get(key); });
}
std::int64_t ForwardingStore::add(const std::string& key, std::int64_t amount) {
  return result_of([&](Store& store) { return store.add(key, amount); });
}
Store::Value ForwardingStore::compare_set(const std::string& key, const Value& expected, const Value& desired) {
  return result_of([&](Store& store) { return store.compare_set(key, expected, desired); });
}
void ForwardingStore::wait(std::span<const std::string> keys, Milliseconds timeout) {
  forward([&](Store& store) { store.wait(keys, timeout); });
}
bool ForwardingStore::check(std::span<const std::string> keys) {
  return result_of([&](Store& store) { return store.check(keys); });
}
bool ForwardingStore::delete_key(const std::string& key) {
  return result_of([&](Store& store) { return store.delete_key(key); });
}
std::int64_t ForwardingStore::num_keys() {
  return result_of([&](Store& store) { return store.num_keys(); });
}
std::vector<std::string> ForwardingStore::list_keys() {
  return result_of([](Store& store) { return store.list_keys(); });
}
void ForwardingStore::append(const std::string& key, const Value& value) {
  forward([&](Store& store) { store.append(key, value); });
}
std::vector<Store::Value> ForwardingStore::multi_get(std::span<const std::string> keys) {
  return result_of([&](Store& store) { return store.multi_get(keys); });
}
void ForwardingStore::multi_set(std::span<const std::string> keys, std::span<const Value> values) {
  forward([&](Store& store) { store.multi_set(keys, values); });
}
void ForwardingStore::queue_push(const std::string& queue, const Value& value) {
  forward([&](Store& store) { store.queue_push(queue, value); });
}
Store::Value ForwardingStore::queue_pop(const std::string& queue) {
  return result_of([&](Store& store) { return store.queue_pop(queue); });
}
Store::Value ForwardingStore::queue_pop_within(const std::string& queue, Milliseconds timeout) {
  return result_of([&](Store& store) { return store.queue_pop_within(queue, timeout); });
}
std::int64_t ForwardingStore::queue_length(const std::string& queue) {
  return result_of([&](Store& store) { return store.queue_length(queue); });
}

}  // namespace gradwire
