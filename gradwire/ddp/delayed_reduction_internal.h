// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The reduction of gradients that are averaged apart from the buckets.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gradwire/base/mutex.h"
#include "gradwire/ddp/accumulator_hooks_internal.h"
#include "gradwire/ddp/parameter_claims_internal.h"
#include "gradwire/ddp/replica_sync_internal.h"
#include "gradwire/process_group/process_group.h"

namespace gradwire::internal {

// In each synchronized backward pass the gradients of `parameters` are summed over the ranks in one all-reduce for each
// dtype and device, then divided. The averages are in .grad at the end of the pass. The all-reduces start when the
// gradients of all `parameters` and of one more parameter, the trigger, have been accumulated, and at the latest at the
// end of the pass. Parameters without a gradient then take part with zeros. Thread-safe.
class DelayedReduction final : public std::enable_shared_from_this<DelayedReduction> {
 public:
  // Who knows when a synchronized pass begins, and what became of it: the Reducer.
  class Owner {
   public:
    virtual ~Owner() = default;
    // A gradient of a delayed parameter or of the trigger has come. Calls begin_pass() where a synchronized pass begins
    // with it.
    virtual void on_delayed_gradient() = 0;
    // Ends the owner with the exception that is being handled, and throws what the owner throws then.
    [[noreturn]] virtual void fail(const std::string& where) = 0;
  };

  // `reduce_dtype`: the dtype in which real floating-point gradients are reduced; not given: the parameters' dtype.
  DelayedReduction(std::vector<NamedTensor> parameters, at::Tensor trigger, std::optional<at::ScalarType> reduce_dtype);

  // Reduces over `group` from now on. `own`: no other calls use `group`, so a reduction may start within the pass.
  void set_group(std::shared_ptr<ProcessGroup> group, bool own) GRADWIRE_EXCLUDES(mutex_);
  // Whether there is a group, and whether it is the reduction's own.
  bool has_group() const GRADWIRE_EXCLUDES(mutex_);
  bool has_own_group() const GRADWIRE_EXCLUDES(mutex_);
  // Called before attach().
  void set_owner(std::weak_ptr<Owner> owner) GRADWIRE_EXCLUDES(mutex_);
  // Puts hooks on the parameters, as AccumulatorHooks::attach() does.
  void attach() GRADWIRE_EXCLUDES(mutex_);
  // Puts hooks on accumulators that parameters have got since the last call.
  void follow() GRADWIRE_EXCLUDES(mutex_);
  // By what sums are divided from the next pass on.
  void set_divisor(int divisor) GRADWIRE_EXCLUDES(mutex_);
  // Whether the running pass was started for chosen inputs, and leaves out the parameters and the trigger.
  bool current_pass_passes_by() const GRADWIRE_EXCLUDES(mutex_);
  // The pass that runs is synchronized: its end reduces the gradients, even if it brings none of them. Called by the
  // owner within the pass, once, and before the first of the gradients counts.
  void begin_pass() GRADWIRE_EXCLUDES(mutex_);
  // On a rank that has joined: takes part in one reduction with zeros, at once. The averages become the gradients. The
  // owner calls it, without locks of its own.
  void shadow() GRADWIRE_EXCLUDES(mutex_);

 private:
  struct Entry {
    std::string name;
    at::Tensor parameter;
    at::ScalarType type;     // the parameter's own dtype, not the one to which mixed precision lowers it
    at::ScalarType travels;  // the dtype in which the gradient is reduced
    bool arrived = false;    // true: the gradient has been accumulated in this pass
  };
  struct Message {
    std::vector<Entry*> entries;
    at::Tensor buffer;
    std::shared_ptr<Work> work;
  };
  void attach_locked() GRADWIRE_REQUIRES(mutex_);
  std::shared_ptr<Owner> owner() const GRADWIRE_EXCLUDES(mutex_);
  void on_gradient(std::size_t number) GRADWIRE_EXCLUDES(mutex_);  // the number of an entry, or of the trigger
  void take(std::size_t number) GRADWIRE_EXCLUDES(mutex_);
  void begin() GRADWIRE_REQUIRES(mutex_);
  void start(bool zeros) GRADWIRE_REQUIRES(mutex_);
  void finish() GRADWIRE_EXCLUDES(mutex_);
  void finish_locked() GRADWIRE_REQUIRES(mutex_);

  const ParameterClaims claims_;
  const at::Tensor trigger_;
  const bool on_cpu_;  // all delayed parameters
  mutable Mutex mutex_;
  std::vector<Entry> entries_ GRADWIRE_GUARDED_BY(mutex_);
  std::shared_ptr<ProcessGroup> group_ GRADWIRE_GUARDED_BY(mutex_);
  bool own_group_ GRADWIRE_GUARDED_BY(mutex_) = false;
  std::weak_ptr<Owner> owner_ GRADWIRE_GUARDED_BY(mutex_);
  int divisor_ GRADWIRE_GUARDED_BY(mutex_) = 1;
  bool in_pass_ GRADWIRE_GUARDED_BY(mutex_) = false;  // a synchronized one
  bool triggered_ GRADWIRE_GUARDED_BY(mutex_) = false;
  std::vector<Message> under_way_ GRADWIRE_GUARDED_BY(mutex_);
  AccumulatorHooks hooks_ GRADWIRE_GUARDED_BY(mutex_);  // of `entries_`, then of the trigger
};

}  // namespace gradwire::internal
