// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Gradients that are averaged apart from the buckets.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include "gradwire/base/mutex.h"
#include "gradwire/ddp/accumulator_hook_internal.h"
#include "gradwire/ddp/replica_sync_internal.h"
#include "gradwire/process_group/process_group.h"

namespace gradwire::internal {

// Of a synchronized backward pass: the gradients of `parameters` are summed over the ranks in one all-reduce for each
// dtype and device, divided, and in .grad at the end of that pass. The all-reduce starts when the gradients of all of
// them and of one more parameter, the trigger, have been accumulated, and at the latest at the end of the pass;
// parameters without a gradient then take part with zeros. Thread-safe.
class DelayedReduction final : public std::enable_shared_from_this<DelayedReduction> {
 public:
  // `reduce_dtype`: what real floating-point gradients travel as, instead of their parameters' type.
  DelayedReduction(std::vector<NamedTensor> parameters, at::Tensor trigger, std::optional<at::ScalarType> reduce_dtype);

  // Over `group` from now on. `own`: nobody else's calls are on it, so that a reduction may start within the pass.
  void set_group(std::shared_ptr<ProcessGroup> group, bool own) GRADWIRE_EXCLUDES(mutex_);
  // Whether the group is there, and whether it is the reduction's own.
  bool has_group() const GRADWIRE_EXCLUDES(mutex_);
  bool has_own_group() const GRADWIRE_EXCLUDES(mutex_);
  // Puts hooks on the parameters; again after their type has changed.
  void attach() GRADWIRE_EXCLUDES(mutex_);
  // The next backward pass is synchronized, with sums divided by `divisor`, and every one that comes through one of
  // `outputs`, even if it brings none of the gradients.
  void expect(const std::vector<at::Tensor>& outputs, int divisor) GRADWIRE_EXCLUDES(mutex_);
  // At once, with zeros: on a rank that has joined the others. Its gradients become the averages.
  void shadow(int divisor) GRADWIRE_EXCLUDES(mutex_);

 private:
  struct Entry {
    std::string name;
    at::Tensor parameter;
    at::ScalarType type;  // the parameter's own, whatever it has while its precision is lowered
    at::ScalarType travels;
    bool arrived = false;  // its gradient, in this pass
  };
  struct Message {
    std::vector<Entry*> entries;
    at::Tensor buffer;
    std::shared_ptr<Work> work;
  };
  void on_gradient(Entry* entry) GRADWIRE_EXCLUDES(mutex_);  // null: the trigger's
  void on_output(int divisor) GRADWIRE_EXCLUDES(mutex_);
  void expect_pass(int divisor) GRADWIRE_REQUIRES(mutex_);
  void begin_pass() GRADWIRE_REQUIRES(mutex_);
  void start(bool zeros) GRADWIRE_REQUIRES(mutex_);
  void finish() GRADWIRE_EXCLUDES(mutex_);
  void finish_locked() GRADWIRE_REQUIRES(mutex_);

  const at::Tensor trigger_;
  mutable Mutex mutex_;
  std::vector<Entry> entries_ GRADWIRE_GUARDED_BY(mutex_);
  std::shared_ptr<ProcessGroup> group_ GRADWIRE_GUARDED_BY(mutex_);
  bool own_group_ GRADWIRE_GUARDED_BY(mutex_) = false;
  int divisor_ GRADWIRE_GUARDED_BY(mutex_) = 0;  // 0: no pass is expected
  bool pass_begun_ GRADWIRE_GUARDED_BY(mutex_) = false;
  bool triggered_ GRADWIRE_GUARDED_BY(mutex_) = false;
  std::vector<Message> under_way_ GRADWIRE_GUARDED_BY(mutex_);
  std::vector<AccumulatorHook> hooks_ GRADWIRE_GUARDED_BY(mutex_);
};

}  // namespace gradwire::internal
