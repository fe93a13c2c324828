// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The communication hook of a Reducer, and the hook that replaces it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "gradwire/ddp/comm_hook.h"
#include "gradwire/ddp/iteration_internal.h"

namespace gradwire::internal {

// Not thread-safe: the Reducer's lock guards the object.
class HookSlot final {
 public:
  // The hook in use. Null: plain averaging.
  const std::shared_ptr<CommHook>& get() const noexcept { return hook_; }
  CommHook* operator->() const noexcept { return hook_.get(); }
  explicit operator bool() const noexcept { return hook_ != nullptr; }

  // Sets the first hook, which is used at once. Throws InvalidArgument for a null hook, when there is a hook already,
  // when `iteration` is past the first one or has launched a bucket, and when the hook names a null group.
  void set_first(std::shared_ptr<CommHook> hook, const Iteration& iteration);
  // Takes set_first() back.
  void unset() noexcept;

  // Keeps `hook` (null: plain averaging) for the next adopt(). Throws InvalidArgument when the hook names a null group.
  void replace_with(std::shared_ptr<CommHook> hook);
  // Begins to use the hook of replace_with() in the iteration of this number. Returns false when there is none.
  bool adopt(std::uint32_t iteration);

  // Whether the hook began in the iteration of this number: the ranks compare their hooks there.
  bool begins_in(std::uint32_t iteration) const noexcept { return since_ == iteration; }
  // The number of earlier hooks modulo 256. The tags of calls carry the number: the calls of a rank that has not
  // replaced its hook differ from those of the others.
  std::uint8_t hooks_before() const noexcept { return hooks_before_; }

 private:
  std::shared_ptr<CommHook> hook_;
  std::optional<std::shared_ptr<CommHook>> replacement_;
  std::optional<std::uint32_t> since_;  // not set before the first hook
  std::uint8_t hooks_before_ = 0;
};

}  // namespace gradwire::internal
