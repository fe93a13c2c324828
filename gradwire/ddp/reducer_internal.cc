// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The Reducer: construction, groups, the hook, the calls before a forward pass, and errors. reducer_backward.cc has the
// backward pass, reducer_finish.cc the end of an iteration, and reducer_shadow.cc the iterations of a rank that has
// joined.
#include "gradwire/ddp/reducer_internal.h"

#include <algorithm>
#include <utility>

#include "gradwire/backend/registry.h"
#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "gradwire/ddp/backward_watch_internal.h"
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

bool all_on_cpu(const std::vector<NamedTensor>& parameters) {
  return std::all_of(parameters.begin(), parameters.end(),
                     [](const NamedTensor& parameter) { return parameter.tensor.is_cpu(); });
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
      calls_(this, group_->rank()),
      failure_(group_),
      store_(parameters, options_.bucket_dtype),
      intake_(store_, iteration_, options_.graph,
              {.keeps_views = options_.gradient_as_bucket_view,
               .converts = options_.bucket_dtype.has_value(),
               .rank = group_->rank()}),
      report_(described(store_), slot_bytes(store_), options_.caps),
      arrangement_(store_, report_, options_.caps, /*finds_order=*/options_.graph != GraphKind::searched),
      shape_choice_({.any = group_->size() > 1 && all_on_cpu(parameters),
                     .free_caps = options_.free_caps,
                     .free_lanes = options_.free_lanes,
                     .own_lanes = options_.lanes,
                     .same_bits = options_.same_bits}),
      reduction_(group_, devices_under(parameters, *group_), failure_, this,
                 {.lanes = options_.lanes,
                  .divides_after = options_.bucket_dtype.has_value(),
                  .keeps_in_buffer = options_.gradient_as_bucket_view}),
      parameter_hooks_([this](std::size_t parameter) { on_gradient(parameter); }) {
  begin_iteration();
}

Reducer::~Reducer() {
  if (!calls_.in_own_process()) return;
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
  store_.release_parameters();
}

void Reducer::attach() {
  MutexLock lock(mutex_);
  parameter_hooks_.attach(store_);
}

std::shared_ptr<ProcessGroup> Reducer::another_group() {
  MutexLock lock(mutex_);
  if (failure_.happened()) throw_failure();
  try {
    std::shared_ptr<ProcessGroup> duplicate = failure_.duplicate(group_);
    return duplicate != nullptr ? duplicate : group_;
  } catch (...) {
    fail_and_throw("the duplication of its group");  // as in start()
  }
}

void Reducer::start() {
  MutexLock lock(mutex_);
  if (failure_.happened()) throw_failure();
  try {
    make_control();
    if (started_) return;
    reduction_.start(/*can_duplicate=*/control_ != group_);
  } catch (...) {
    // Another try would duplicate the group when the other ranks do not.
    fail_and_throw("the duplication of its group");
  }
  started_ = true;
  report_hook();
}

void Reducer::start_control() {
  MutexLock lock(mutex_);
  make_control();
}

void Reducer::make_control() {
  if (control_ != nullptr) return;
  std::shared_ptr<ProcessGroup> control = failure_.duplicate(group_);
  control_ = control != nullptr ? std::move(control) : group_;
}

void Reducer::prepare_memory() {
  MutexLock lock(mutex_);
  if (!idle()) store_.allocate(*control_);
}

void Reducer::set_hook(std::shared_ptr<CommHook> hook) {
  calls_.require_between_passes("register_comm_hook()");
  MutexLock lock(mutex_);
  reduction_.set_first_hook(std::move(hook), iteration_);
  report_hook();
}

void Reducer::replace_hook(std::shared_ptr<CommHook> hook) {
  calls_.require_between_passes("replace_comm_hook()");
  MutexLock lock(mutex_);
  reduction_.replace_hook(std::move(hook));
}

void Reducer::report_hook() { report_.set_hook(reduction_.hook_name(), reduction_.lanes()); }

void Reducer::before_forward() {
  calls_.require_own_process();
  MutexLock lock(mutex_);
  if (failure_.happened()) throw_failure(failure_.for_later_pass());
  reduction_.require_capturable(options_.graph, iteration_);
  iteration_.mark_forward();
  reduction_.set_caller(observe::caller_line());
  waited_ = WaitClock::time_of_thread();
  try {
    intake_.require_finished(group_->size());
    ParameterHooks::require_unchanged(store_, /*lowered=*/options_.on_pass != nullptr, group_->rank());
    if (reduction_.adopt_hook(iteration_.number())) report_hook();
  } catch (...) {
    fail_and_throw("its next forward");
  }
  if (!started_ || idle()) return;
  try {
    store_.allocate(*control_);
    if (arrangement_.follow_order(*control_, iteration_.number())) begin_iteration();
    follow_shape();
  } catch (...) {
    fail_and_throw("its next forward, where the buckets and lanes are chosen");
  }
}

void Reducer::require_pass_ended(const std::string& before) {
  if (current_backward_pass() != -1 || calls_.in_hook()) return;
  MutexLock lock(mutex_);
  if (failure_.happened()) return;
  try {
    intake_.require_finished(group_->size());
  } catch (...) {
    fail_and_throw(before);
  }
}

void Reducer::set_bucket_order(const std::vector<std::string>& names) {
  calls_.require_between_passes("set_bucket_order()");
  MutexLock lock(mutex_);
  if (iteration_.number() > 0 || iteration_.under_way()) {
    throw InvalidArgument("set_bucket_order() was called after the first synchronized backward pass; call it before.");
  }
  if (!names.empty()) arrangement_.load(names, group_->rank());
}

void Reducer::begin_iteration() {
  calls_.end_pass();
  iteration_.reset(store_.plan());
  reduction_.begin(store_.bucket_count());
  intake_.begin();
}

// Called before each synchronized forward.
void Reducer::follow_shape() {
  const ReductionShape shape = shape_choice_.next(reduction_.hook().get().get(), arrangement_, reduction_.lanes() > 0);
  if (arrangement_.use_cap(shape.cap_bytes)) begin_iteration();
  if (reduction_.use_lanes(shape.lanes)) report_hook();
}

void Reducer::set_participants(int divisor, bool new_rank, int leader) {
  MutexLock lock(mutex_);
  leader_ = leader;
  reduction_.set_divisor(divisor);
  if (new_rank) intake_.expect_new_rank();
}

void Reducer::follow_accumulators() {
  MutexLock lock(mutex_);
  parameter_hooks_.follow(store_);
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

void Reducer::throw_failure() { throw_failure(failure_.first()); }

void Reducer::throw_failure(const std::exception_ptr& failure) {
  leave_buckets();
  if (options_.errors != nullptr) options_.errors(failure);
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
