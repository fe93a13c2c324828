// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// What stands between an ElasticGroup and the group of the epoch, to record calls or to answer them.
#pragma once

#include <functional>
#include <memory>
#include <set>

#include "gradwire/base/mutex.h"
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

  // Gives a group of the tree a number: the lowest that no other group has. 0 is the ElasticGroup itself, and its
  // duplicates follow in the order in which they were made. Equal on ranks that make and drop the same duplicates, also
  // where the tap is younger on one of them.
  int take_number() GRADWIRE_EXCLUDES(numbers_mutex_) {
    const MutexLock lock(numbers_mutex_);
    int number = 0;
    while (numbers_.contains(number)) ++number;
    numbers_.insert(number);
    return number;
  }
  // The group with this number is gone, or has another tap.
  void give_back_number(int number) GRADWIRE_EXCLUDES(numbers_mutex_) {
    const MutexLock lock(numbers_mutex_);
    numbers_.erase(number);
  }

 private:
  Mutex numbers_mutex_;
  std::set<int> numbers_ GRADWIRE_GUARDED_BY(numbers_mutex_);
};

}  // namespace gradwire::internal
