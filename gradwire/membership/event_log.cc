// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/membership/event_log.h"

#include <utility>

#include "gradwire/membership/stored_values.h"
#include "gradwire/store/stored_number.h"

namespace gradwire::membership {

EventLog::EventLog(std::shared_ptr<Store> store) : store_(std::move(store)) {}

std::int64_t EventLog::append(const Event& event) {
  const std::string text = to_text(event);
  // A number that is too small costs a few more looks only.
  std::int64_t number = noted_end();
  while (store_->compare_set(event_key(++number), "", text) != text) {
  }
  return number;
}

std::int64_t EventLog::noted_end() { return stored_number(kEventsEndKey, store_->compare_set(kEventsEndKey, "", "0")); }

std::optional<std::string> EventLog::read(std::int64_t number, Milliseconds wait) {
  return value_of(*store_, event_key(number), wait);
}

void EventLog::note_end(std::int64_t number) { store_->set(kEventsEndKey, std::to_string(number)); }

}  // namespace gradwire::membership
