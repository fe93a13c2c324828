// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// For bindings that show the calls of a group to the profiler of PyTorch themselves.
#pragma once

namespace gradwire {

// While it exists, collectives that this thread calls make no range of their own in a profile, because the caller has
// made one with more in it. Objects nest, and live on the stack of their thread.
class ProfiledByCaller {
 public:
  // From here on, the caller's range stands for the calls.
  ProfiledByCaller() noexcept;
  ~ProfiledByCaller();
  ProfiledByCaller(const ProfiledByCaller&) = delete;
  ProfiledByCaller& operator=(const ProfiledByCaller&) = delete;
};

}  // namespace gradwire
