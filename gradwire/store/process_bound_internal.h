// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Holds an object that a forked child must neither use nor destroy.
#pragma once

#include <memory>
#include <utility>

#include "gradwire/base/process.h"

namespace gradwire::store_internal {

// Shares ownership of a T that belongs to the process which made this object.
template <class T>
class ProcessBound {
 public:
  // `what` names the object in errors and must live as long as this does (a literal).
  ProcessBound(const char* what, std::shared_ptr<T> value) : what_(what), value_(std::move(value)) {}
  ProcessBound(const ProcessBound&) = delete;
  ProcessBound& operator=(const ProcessBound&) = delete;

  // In a forked child the T is left as it is, for ever: its destructor would wait for threads that are not there, or
  // take descriptors out of an event loop that the child shares with its parent.
  ~ProcessBound() {
    if (!owner_.is_current()) static_cast<void>(std::make_unique<std::shared_ptr<T>>(std::move(value_)).release());
  }

  bool is_current() const noexcept { return owner_.is_current(); }

  // Throws InvalidArgument in a forked child.
  const std::shared_ptr<T>& get() const {
    owner_.require_current(what_);
    return value_;
  }

 private:
  const char* what_;
  std::shared_ptr<T> value_;
  OwnerProcess owner_;
};

}  // namespace gradwire::store_internal
