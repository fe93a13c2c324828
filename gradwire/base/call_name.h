// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// How errors name the call that this thread makes, where the caller knows more than the code that runs the call: a
// group knows its own name, and the number that the call has on all ranks.
#pragma once

#include <string>

namespace gradwire {

// The name for the errors of what this thread does while the object exists. Objects nest; the innermost one with a name
// counts.
class CallName {
 public:
  // Returns the name that `context` stands for, "all_reduce (call 17 of group default)"; empty: there is none. Called
  // when an error is thrown.
  using Describe = std::string (*)(const void* context);
  // `context` outlives the object.
  CallName(Describe describe, const void* context) noexcept;
  ~CallName();
  CallName(const CallName&) = delete;
  CallName& operator=(const CallName&) = delete;

 private:
  friend std::string call_name(const std::string& otherwise);
  const Describe describe_;
  const void* const context_;
  const CallName* const outer_;
};

// While it exists, what this thread does is part of the call that is named now, as the steps of a group that is made of
// groups are: CallNames that begin within it do not count. Objects nest.
class PartsOfCall {
 public:
  // The whole is what the innermost CallName of this thread names, or that of a PartsOfCall around this one.
  PartsOfCall() noexcept;
  ~PartsOfCall();
  PartsOfCall(const PartsOfCall&) = delete;
  PartsOfCall& operator=(const PartsOfCall&) = delete;

 private:
  const CallName* const before_;
};

// The name that the innermost CallName of this thread gives that counts; `otherwise` where no CallName gives one.
std::string call_name(const std::string& otherwise);

}  // namespace gradwire
