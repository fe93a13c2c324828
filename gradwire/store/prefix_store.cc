// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/store/prefix_store.h"

#include <utility>

#include "gradwire/base/error.h"
#include "gradwire/store/key_value_map_internal.h"

namespace gradwire {

PrefixStore::PrefixStore(std::string prefix, std::shared_ptr<Store> store)
    : prefix_(std::move(prefix)), store_(std::move(store)) {
  if (store_ == nullptr) throw InvalidArgument("PrefixStore: the underlying store is null");
}

std::string PrefixStore::full(const char* operation, const std::string& key) const {
  store_internal::require_key(operation, key);
  return prefix_ + "/" + key;
}

std::vector<std::string> PrefixStore::full(const char* operation, std::span<const std::string> keys) const {
  std::vector<std::string> result;
  result.reserve(keys.size());
  for (const std::string& key : keys) result.push_back(full(operation, key));
  return result;
}

void PrefixStore::set(const std::string& key, const Value& value) { store_->set(full("set", key), value); }

Store::Value PrefixStore::get(const std::string& key) { return store_->get(full("get", key)); }

std::int64_t PrefixStore::add(const std::string& key, std::int64_t amount) {
  return store_->add(full("add", key), amount);
}

Store::Value PrefixStore::compare_set(const std::string& key, const Value& expected, const Value& desired) {
  return store_->compare_set(full("compare_set", key), expected, desired);
}

void PrefixStore::wait(std::span<const std::string> keys, Milliseconds timeout) {
  store_->wait(full("wait", keys), timeout);
}

bool PrefixStore::check(std::span<const std::string> keys) { return store_->check(full("check", keys)); }

bool PrefixStore::delete_key(const std::string& key) { return store_->delete_key(full("delete_key", key)); }

std::int64_t PrefixStore::num_keys() { return store_->num_keys(); }

std::vector<std::string> PrefixStore::list_keys() {
  const std::string start = prefix_ + "/";
  std::vector<std::string> keys;
  for (const std::string& key : store_->list_keys()) {
    if (key.size() > start.size() && key.starts_with(start)) keys.push_back(key.substr(start.size()));
  }
  return keys;
}

void PrefixStore::append(const std::string& key, const Value& value) { store_->append(full("append", key), value); }

std::vector<Store::Value> PrefixStore::multi_get(std::span<const std::string> keys) {
  return store_->multi_get(full("multi_get", keys));
}

void PrefixStore::multi_set(std::span<const std::string> keys, std::span<const Value> values) {
  store_->multi_set(full("multi_set", keys), values);
}

void PrefixStore::queue_push(const std::string& queue, const Value& value) {
  store_->queue_push(full("queue_push", queue), value);
}

Store::Value PrefixStore::queue_pop(const std::string& queue) { return store_->queue_pop(full("queue_pop", queue)); }

Store::Value PrefixStore::queue_pop_within(const std::string& queue, Milliseconds timeout) {
  return store_->queue_pop_within(full("queue_pop_within", queue), timeout);
}

std::int64_t PrefixStore::queue_length(const std::string& queue) {
  return store_->queue_length(full("queue_length", queue));
}

Milliseconds PrefixStore::timeout() const { return store_->timeout(); }

void PrefixStore::set_timeout(Milliseconds timeout) { store_->set_timeout(timeout); }

std::shared_ptr<Store> PrefixStore::clone() { return std::make_shared<PrefixStore>(prefix_, store_->clone()); }

}  // namespace gradwire
