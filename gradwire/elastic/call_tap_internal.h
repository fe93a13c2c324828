// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// What stands between an ElasticGroup and the group of the epoch, to record calls or to answer them.
#pragma once

#include <atomic>
#include <functional>
#include <memory>

#include "gradwire/process_group/group_call.h"
#include "gradwire/process_group/work.h"

namespace gradwire::internal {

class CallTap {
 public:
  virtual ~CallTap() = default;

  // Takes the place of `call`, a call on group `group` of the tree of an ElasticGroup and its duplicates. `make` makes
  // the call on the group of the epoch; it may be called once, before this function returns. Returns the call's Work,
  // and throws as the call does. Any thread may call, several at once.
  virtual std::shared_ptr<Work> call(int group, GroupCall& call,
                                     const std::function<std::shared_ptr<Work>()>& make) = 0;

  // The number of the next group of the tree: 0 is the ElasticGroup itself, and its duplicates follow in the order in
  // which they were made. Equal on ranks that make the same duplicates.
  int next_group() noexcept { return next_group_++; }

 private:
  std::atomic<int> next_group_{0};
};

}  // namespace gradwire::internal
