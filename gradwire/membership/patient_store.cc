// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/membership/patient_store.h"

#include <algorithm>
#include <optional>
#include <thread>
#include <utility>

#include "gradwire/base/error.h"
#include "gradwire/base/interrupt.h"
#include "gradwire/base/strings.h"

namespace gradwire::membership {
namespace {

constexpr Milliseconds kBetweenTries{50};
// A store that answers may have come back only after the call had failed. When that happens so often, the store has
// refused the call.
constexpr int kRefusals = 3;

}  // namespace

PatientStore::PatientStore(std::shared_ptr<Store> store, Milliseconds patience)
    : store_(std::move(store)), patience_(patience) {
  if (store_ == nullptr) throw InvalidArgument("PatientStore: the store is null");
  if (patience_.count() < 0)
    throw InvalidArgument(concat("PatientStore: a patience of ", patience_.count(), " ms; it must not be negative"));
}

bool PatientStore::answers() const noexcept {
  try {
    store_->num_keys();
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

template <class Call>
auto PatientStore::patiently(const Call& call) {
  std::optional<Deadline> deadline;
  for (int refusals = 0;;) {
    try {
      return call(*store_);
    } catch (const StoreError& problem) {
      if (!deadline) deadline = Deadline::after(patience_);
      if (answers() && ++refusals == kRefusals) throw;
      if (deadline->expired()) {
        throw StoreError(concat(problem.what(), "; the store did not come back within ",
                                static_cast<double>(patience_.count()) / 1000, " s"));
      }
    }
    throw_if_interrupted("waiting for the store of the elastic job to come back");
    std::this_thread::sleep_for(std::min(kBetweenTries, deadline->remaining()));
  }
}

void PatientStore::set(const std::string& key, const Value& value) {
  patiently([&](Store& store) { store.set(key, value); });
}
Store::Value PatientStore::get(const std::string& key) {
  return patiently([&](Store& store) { return store.get(key); });
}
std::int64_t PatientStore::add(const std::string& key, std::int64_t amount) {
  return patiently([&](Store& store) { return store.add(key, amount); });
}
Store::Value PatientStore::compare_set(const std::string& key, const Value& expected, const Value& desired) {
  return patiently([&](Store& store) { return store.compare_set(key, expected, desired); });
}
void PatientStore::wait(std::span<const std::string> keys, Milliseconds timeout) {
  patiently([&](Store& store) { store.wait(keys, timeout); });
}
bool PatientStore::check(std::span<const std::string> keys) {
  return patiently([&](Store& store) { return store.check(keys); });
}
bool PatientStore::delete_key(const std::string& key) {
  return patiently([&](Store& store) { return store.delete_key(key); });
}
std::int64_t PatientStore::num_keys() {
  return patiently([&](Store& store) { return store.num_keys(); });
}
void PatientStore::append(const std::string& key, const Value& value) {
  patiently([&](Store& store) { store.append(key, value); });
}
std::vector<Store::Value> PatientStore::multi_get(std::span<const std::string> keys) {
  return patiently([&](Store& store) { return store.multi_get(keys); });
}
void PatientStore::multi_set(std::span<const std::string> keys, std::span<const Value> values) {
  patiently([&](Store& store) { store.multi_set(keys, values); });
}
void PatientStore::queue_push(const std::string& queue, const Value& value) {
  patiently([&](Store& store) { store.queue_push(queue, value); });
}
Store::Value PatientStore::queue_pop(const std::string& queue) {
  return patiently([&](Store& store) { return store.queue_pop(queue); });
}
std::int64_t PatientStore::queue_length(const std::string& queue) {
  return patiently([&](Store& store) { return store.queue_length(queue); });
}
std::shared_ptr<Store> PatientStore::clone() { return std::make_shared<PatientStore>(store_->clone(), patience_); }

}  // namespace gradwire::membership
