// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The Reducer: construction, groups, the hook, the calls before a forward pass, and errors. reducer_backward.cc has the
// backward pass, reducer_finish.cc the end of an iteration, reducer_shadow.cc the iterations of a rank that has joined,
// and reducer_shape.cc the order of the buckets and what a hook changes in the buckets and lanes.
#include "gradwire/ddp/reducer_internal.h"

#include <algorithm>
#include <utility>

#include "gradwire/backend/registry.h"
#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "gradwire/ddp/hook_scope_internal.h"
#include "gradwire/observe/flight_recorder.h"
#include "gradwire/process_group/staged_call_internal.h"
#include "gradwire/process_group/work_internal.h"

namespace gradwire::internal {
namespace {

bool is_ours(const ProcessGroup& group) {
  const std::string name = group.name();
  const auto backends = builtin_backends();
  return std::any_of(backends.begin(), backends.end(), [&](const BackendEntry& entry) { return entry.name == name; });
}

// The devices on which an engine works by itself, after its calls have returned.
std::vector<at::Device> devices_under(const std::vector<NamedTensor>& parameters, const ProcessGroup& group) {
  std::vector<at::Tensor> tensors;
  for (const NamedTensor& parameter : parameters) tensors.push_back(parameter.tensor);
  std::vector<at::Device> devices = devices_of(tensors);
  std::erase_if(devices, [&](const at::Device& device) { return stages(group, device.type()); });
  return devices;
}

std::vector<ReductionReport::Parameter> described(const BucketStore& store) {
  std::vector<ReductionReport::Parameter> described;
  for (std::size_t i = 0; i < store.parameter_count(); ++i) {
    const at::ScalarType dtype = store.dtype(i);
    const auto bytes = static_cast<std::size_t>(store.parameter(i).numel()) * c10::elementSize(dtype);
    described.push_back({store.name(i), c10::toString(dtype), bytes});
  }
  return described;
}

std::vector<std::size_t> slot_bytes(const BucketStore& store) {
  std::vector<std::size_t> bytes;
  for (const TensorSpec& spec : store.specs()) bytes.push_back(spec.bytes);
  return bytes;
}

}  // namespace

Reducer::Reducer(std::vector<NamedTensor> parameters, std::shared_ptr<ProcessGroup> group, ReducerOptions options)
    : options_(std::move(options)),
      group_(std::move(group)),
      alone_(group_->size() == 1 && is_ours(*group_)),
      failure_(group_->rank()),
      store_(parameters, options_.bucket_dtype),
      filler_(store_, {.keeps_views = options_.gradient_as_bucket_view,
                       .converts = options_.bucket_dtype.has_value(),
                       .rank = group_->rank()}),
      order_(options_.caps),
      use_(options_.graph, store_.parameter_count()),
      report_(described(store_), slot_bytes(store_), options_.caps),
      reduction_(group_, devices_under(parameters, *group_), failure_, this,
                 {.lanes = options_.lanes,
                  .divides_after = options_.bucket_dtype.has_value(),
                  .keeps_in_buffer = options_.gradient_as_bucket_view}),
      parameter_hooks_([this](std::size_t parameter) { on_gradient(parameter); }) {
  // The first iteration only finds the order of the gradients, so there is one bucket for each dtype and device. When
  // the order may change in each iteration, there is nothing to find, and the caps hold at once.
  const BucketCaps caps = finds_order() ? BucketCaps{kUnlimitedBucketBytes} : options_.caps;
  store_.arrange(plan_initial_buckets(store_.specs(), caps), /*is_final=*/!finds_order());
  report_.set_first_plan(store_.plan());
  begin_iteration();
}

Reducer::~Reducer() {
  if (!owner_.is_current()) return;
  parameter_hooks_.clear();
  if (!iteration_.under_way() || failure_.happened()) return;
  const std::string reason =
      concat("DistributedDataParallel was destroyed on rank ", group_->rank(), " before its gradients were reduced.");
  failure_.report(std::make_exception_ptr(AbortedError(reason)), "its destruction");
}

void Reducer::retire() {
  MutexLock lock(mutex_);
  parameter_hooks_.clear();
  if (iteration_.under_way() && !failure_.happened()) {
    const std::string reason = concat("DistributedDataParallel left its group on rank ", group_->rank(),
                                      " before its gradients were reduced.");
    failure_.report(std::make_exception_ptr(AbortedError(reason)), "leave_group()");
  }
  leave_buckets();
}

void Reducer::attach() {
  MutexLock lock(mutex_);
  parameter_hooks_.attach(store_);
}

std::shared_ptr<ProcessGroup> Reducer::another_group() {
  std::shared_ptr<ProcessGroup> duplicate = failure_.duplicate(group_);
  return duplicate != nullptr ? duplicate : group_;
}

void Reducer::start() {
  MutexLock lock(mutex_);
  if (control_ != nullptr) return;
  std::shared_ptr<ProcessGroup> control = failure_.duplicate(group_);
  const bool can_duplicate = control != nullptr;
  control_ = can_duplicate ? std::move(control) : group_;
  reduction_.start(can_duplicate);
  report_hook();
}

void Reducer::prepare_memory() {
  MutexLock lock(mutex_);
  if (!idle()) store_.allocate(*control_);
}

void Reducer::require_outside_hook(const char* what) const {
  if (!HookScope::is_inside(this)) return;
  throw InvalidArgument(concat(what, " of a DistributedDataParallel was called in its own communication hook on rank ",
                               group_->rank(), "; call it after the backward pass, which waits for the hook."));
}

void Reducer::set_hook(std::shared_ptr<CommHook> hook) {
  require_between_passes("register_comm_hook()");
  MutexLock lock(mutex_);
  reduction_.set_first_hook(std::move(hook), iteration_);
  report_hook();
}

void Reducer::replace_hook(std::shared_ptr<CommHook> hook) {
  require_between_passes("replace_comm_hook()");
  MutexLock lock(mutex_);
  reduction_.replace_hook(std::move(hook));
}

void Reducer::report_hook() { report_.set_hook(reduction_.hook_name(), reduction_.lanes()); }

// Called before the lock is taken: a pass may hold the lock while hooks run.
void Reducer::require_between_passes(const char* what) const {
  if (!reducing_) return;
  throw InvalidArgument(concat(what, " was called within a backward pass on rank ", group_->rank(),
                               " (by a hook, say), or after one that did not reach all parameters; call it between "
                               "iterations, before the forward."));
}

void Reducer::before_forward() {
  owner_.require_current("A DistributedDataParallel");
  MutexLock lock(mutex_);
  if (failure_.happened()) throw_failure();
  reduction_.require_capturable(options_.graph, iteration_);
  iteration_.mark_forward();
  reduction_.set_caller(observe::caller_line());
  try {
    require_finished();
    parameter_hooks_.follow(store_, /*lowered=*/options_.on_pass != nullptr, group_->rank());
    if (reduction_.adopt_hook(iteration_.number())) report_hook();
  } catch (...) {
    fail_and_throw("its next forward");
  }
  if (control_ == nullptr || idle()) return;
  store_.allocate(*control_);
  if (!order_.is_agreed() && (order_.is_loaded() || (finds_order() && iteration_.number() > 0))) use_order();
  try {
    follow_shape();
  } catch (...) {
    fail_and_throw("its next forward, where the hook chose the buckets and lanes");
  }
}

void Reducer::require_finished() const {
  if (!iteration_.under_way()) return;
  std::vector<std::string> missing;
  for (const std::size_t parameter : iteration_.missing()) missing.push_back(concat("'", store_.name(parameter), "'"));
  throw InvalidArgument(concat(
      "The reduction of the iteration before did not finish on rank ", group_->rank(), " of ", group_->size(), ": ",
      missing.size(), " of ", store_.parameter_count(), " parameters got no gradient: ", join(missing, ", "),
      ". Every parameter that needs a gradient must take part in the loss on every rank, unless find_unused_parameters "
      "is set; and backward must run once for each synchronized forward; use no_sync() to accumulate."));
}

void Reducer::set_bucket_order(const std::vector<std::string>& names) {
  require_between_passes("set_bucket_order()");
  MutexLock lock(mutex_);
  if (iteration_.number() > 0 || iteration_.under_way()) {
    throw InvalidArgument("set_bucket_order() was called after the first synchronized backward pass; call it before.");
  }
  std::vector<std::string> known;
  for (std::size_t i = 0; i < store_.parameter_count(); ++i) known.push_back(store_.name(i));
  order_.load(names, known, group_->rank());
}

void Reducer::begin_iteration() {
  reducing_ = false;
  iteration_.reset(store_.plan());
  reduction_.begin(store_.bucket_count());
  filler_.begin();
}

void Reducer::set_participants(int divisor, bool new_rank) {
  MutexLock lock(mutex_);
  reduction_.set_divisor(divisor);
  if (new_rank) use_.expect_new_rank();
}

void Reducer::expect_backward(const std::vector<at::Tensor>& outputs) {
  {
    MutexLock lock(mutex_);
    iteration_.expect();
  }
  for (const at::Tensor& output : outputs) {
    // A leaf would keep the hook forever, and a parameter among the outputs has a hook of its own.
    if (!output.defined() || !output.requires_grad() || output.is_leaf()) continue;
    output.register_hook([weak = weak_from_this()](const at::Tensor&) {
      if (const auto reducer = weak.lock()) reducer->on_output();
    });
  }
}

// Moves the gradients out of the buckets: in shared memory a stalled peer may still write into the buckets.
void Reducer::leave_buckets() {
  reduction_.give_up();
  store_.make_gradients_private();
}

void Reducer::throw_failure() {
  leave_buckets();
  const std::exception_ptr failure = failure_.first();
  if (options_.rethrow) options_.rethrow(failure);
  std::rethrow_exception(failure);
}

void Reducer::fail_and_throw(const std::string& where) {
  failure_.report(std::current_exception(), where);
  throw_failure();
}

void Reducer::report(DdpLoggingData& data) const {
  report_.fill(data);
  data.payload_bytes = failure_.payload_bytes();
  data.error = failure_.description();
}

}  // namespace gradwire::internal
