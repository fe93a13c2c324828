// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// What the flight recorder keeps of a group's calls.
#pragma once

#include <atomic>
#include <exception>
#include <memory>
#include <string>
#include <type_traits>

#include "gradwire/base/call_name.h"
#include "gradwire/base/mutex.h"
#include "gradwire/observe/flight_recorder.h"
#include "gradwire/process_group/process_group.h"

namespace gradwire::internal {

// The records of one group, which get their place in the recorder at open(), and at the first call else. Thread-safe.
class GroupRecord {
 public:
  void open(const ProcessGroup& group) noexcept;
  observe::FlightCall begin(const ProcessGroup& group, const observe::CallArguments& arguments) noexcept;
  // Names the group after the group that it was made from: "default.dup2", "default.split1:0". Before its first call.
  void name_after(const std::string& path) noexcept;
  // The path of the next duplicate or part of `group`. The same on all ranks, as these calls are collective.
  std::string next_duplicate(const ProcessGroup& group);
  std::string next_part(const ProcessGroup& group, int color);

 private:
  std::string path(const ProcessGroup& group);

  observe::FlightGroup flight_;
  std::atomic<bool> is_open_{false};
  Mutex mutex_;
  std::string path_ GRADWIRE_GUARDED_BY(mutex_);
  int duplicates_ GRADWIRE_GUARDED_BY(mutex_) = 0;
  int parts_ GRADWIRE_GUARDED_BY(mutex_) = 0;
};

// The arguments of a call, from the tensors of which all ranks pass as many elements.
observe::CallArguments arguments_of(observe::CallKind kind, const void* return_address);
observe::CallArguments arguments_of(observe::CallKind kind, const void* return_address, const at::Tensor& tensor);
observe::CallArguments arguments_of(observe::CallKind kind, const void* return_address, const Tensors& tensors);
std::uint64_t packed(const CallTag& tag) noexcept;

// Lets the record end with `work`, whose class has not taken the record. A Work of a user's class is asked for its
// future where `by_future`; otherwise, and where it has none, its end is not known. (A call that is waited for at once
// takes no future.)
void follow(observe::FlightCall flight, Work& work, bool by_future) noexcept;

// Runs `body`, which ends the call with its return or its error.
template <class Body>
auto recorded(observe::FlightCall flight, const Body& body) -> decltype(body()) {
  const observe::CallInProgress in_progress{observe::FlightCall()};  // calls of other groups have records of their own
  const CallName name([](const void* call) { return static_cast<const observe::FlightCall*>(call)->name(); }, &flight);
  try {
    if constexpr (std::is_void_v<decltype(body())>) {
      body();
      flight.ended(nullptr);
    } else {
      auto result = body();
      flight.ended(nullptr);
      return result;
    }
  } catch (...) {
    flight.ended(std::current_exception());
    throw;
  }
}

}  // namespace gradwire::internal
