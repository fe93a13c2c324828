// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The Reducer: construction, groups, the calls before a forward pass, and errors. reducer_hook.cc has the choice of the
// hook, reducer_backward.cc the backward pass, reducer_store.cc the copies into buckets, reducer_finish.cc the end of
// an iteration, reducer_device.cc what only devices need, reducer_shadow.cc the iterations of a rank that has
// joined, and reducer_shape.cc what a hook changes in the buckets and lanes.
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
      group_multiplies_(group_->multiplies_as_it_sums()),
      alone_(group_->size() == 1 && is_ours(*group_)),
      devices_(devices_under(parameters, *group_)),
      failure_(group_->rank()),
      store_(std::move(parameters), options_.bucket_dtype),
      report_(described(store_), slot_bytes(store_), options_.caps),
      use_(options_.graph, store_.parameter_count()),
      launcher_(group_, failure_, this),
      divisor_(group_->size()) {
  // The first iteration only finds the order of the gradients, so there is one bucket for each dtype and device. When
  // the order may change in each iteration, there is nothing to find, and the caps hold at once.
  store_.arrange(plan_initial_buckets(store_.specs(), rebuilds() ? BucketCaps{kUnlimitedBucketBytes} : options_.caps));
  report_.set_first_plan(store_.plan());
  begin_iteration();
}

Reducer::~Reducer() {
  if (!owner_.is_current()) return;
  hooks_on_parameters_.clear();
  if (!iteration_.under_way() || failure_.happened()) return;
  const std::string reason =
      concat("DistributedDataParallel was destroyed on rank ", group_->rank(), " before its gradients were reduced.");
  failure_.report(std::make_exception_ptr(AbortedError(reason)), "its destruction");
}

void Reducer::retire() {
  MutexLock lock(mutex_);
  hooks_on_parameters_.clear();
  if (iteration_.under_way() && !failure_.happened()) {
    const std::string reason = concat("DistributedDataParallel left its group on rank ", group_->rank(),
                                      " before its gradients were reduced.");
    failure_.report(std::make_exception_ptr(AbortedError(reason)), "leave_group()");
  }
  leave_buckets();
}

void Reducer::attach() {
  MutexLock lock(mutex_);
  attach_hooks();
}

void Reducer::attach_hooks() {
  hooks_on_parameters_.clear();
  for (std::size_t i = 0; i < store_.parameter_count(); ++i) {
    hooks_on_parameters_.emplace_back(store_.parameter(i), [this, i] { on_gradient(i); });
  }
}

std::shared_ptr<ProcessGroup> Reducer::another_group() {
  std::shared_ptr<ProcessGroup> duplicate = failure_.duplicate(group_);
  return duplicate != nullptr ? duplicate : group_;
}

void Reducer::start() {
  MutexLock lock(mutex_);
  if (control_ != nullptr) return;
  std::shared_ptr<ProcessGroup> control = failure_.duplicate(group_);
  if (control != nullptr) launcher_.start(options_.lanes);
  control_ = control != nullptr ? std::move(control) : group_;
  use_hook(hook_);
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

void Reducer::before_forward() {
  owner_.require_current("A DistributedDataParallel");
  MutexLock lock(mutex_);
  if (failure_.happened()) throw_failure();
  require_capturable();
  iteration_.mark_forward();
  caller_ = observe::caller_line();
  try {
    require_finished();
    follow_parameters();
    adopt_replacement();
  } catch (...) {
    fail_and_throw("its next forward");
  }
  if (control_ == nullptr || idle()) return;
  store_.allocate(*control_);
  if (!rebuilt_ && (order_loaded_ || (rebuilds() && iteration_.number() > 0))) rebuild();
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

// Autograd gives a parameter a new accumulator, without our hook, when its tensor is replaced by one of another dtype
// or device, and sometimes in other cases (torch::load() into the module). Without a new hook, the parameter's
// gradients would silently stay local.
void Reducer::follow_parameters() {
  // Mixed precision changes the accumulators for each pass, and then calls attach().
  const bool lowered = options_.on_pass != nullptr;
  bool followed = true;
  for (std::size_t i = 0; i < hooks_on_parameters_.size(); ++i) {
    const at::Tensor& parameter = store_.parameter(i);
    if (!store_.fits(i, lowered)) {
      throw InvalidArgument(concat("Parameter '", store_.name(i), "' is ", parameter.scalar_type(), parameter.sizes(),
                                   " on ", parameter.device(), " on rank ", group_->rank(),
                                   ", but had another dtype, device or other sizes when DistributedDataParallel was "
                                   "made; change the module (or load it from a file) first, then wrap it."));
    }
    followed = followed && hooks_on_parameters_[i].is_of(parameter);
  }
  if (!followed && !lowered) attach_hooks();
}

// Called once, before the second synchronized forward: plans the buckets in the order in which gradients became ready
// on rank 0. When an order was loaded, called before the first synchronized forward.
void Reducer::rebuild() {
  ready_order_ = broadcast_integers(*control_, std::move(ready_order_));
  const std::vector<TensorSpec> specs = store_.specs();
  std::vector<TensorSpec> ordered;
  for (const std::int64_t index : ready_order_) ordered.push_back(specs.at(static_cast<std::size_t>(index)));
  arrange_anew(plan_buckets(ordered, options_.caps));
  ordered_specs_ = std::make_shared<const std::vector<TensorSpec>>(std::move(ordered));
  rebuilt_ = true;
}

void Reducer::arrange_anew(BucketPlan plan) {
  // Gradients may lie in the memory that is cut anew: their values must be kept, and must not become the gradients of
  // other parameters.
  store_.make_gradients_private();
  store_.arrange(std::move(plan));
  report_.set_rebuilt_plan(store_.plan(), ready_order_);
  begin_iteration();
}

void Reducer::set_bucket_order(const std::vector<std::string>& names) {
  require_between_passes("set_bucket_order()");
  MutexLock lock(mutex_);
  if (iteration_.number() > 0 || iteration_.under_way()) {
    throw InvalidArgument("set_bucket_order() was called after the first synchronized backward pass; call it before.");
  }
  std::vector<std::int64_t> order;
  for (const std::string& name : names) {
    std::size_t index = 0;
    while (index < store_.parameter_count() && store_.name(index) != name) ++index;
    order.push_back(static_cast<std::int64_t>(index));
  }
  std::vector<std::int64_t> sorted = order;
  std::sort(sorted.begin(), sorted.end());
  bool complete = sorted.size() == store_.parameter_count();
  for (std::size_t i = 0; complete && i < sorted.size(); ++i) complete = sorted[i] == static_cast<std::int64_t>(i);
  if (!complete) {
    throw InvalidArgument(concat("set_bucket_order(): the ", names.size(), " names are not those of the ",
                                 store_.parameter_count(), " parameters that need a gradient, each once, on rank ",
                                 group_->rank(), "; was the order saved from another model?"));
  }
  ready_order_ = std::move(order);
  order_loaded_ = true;
}

void Reducer::begin_iteration() {
  reducing_ = false;
  iteration_.reset(store_.plan());
  launcher_.expect(store_.bucket_count());
  fillings_.clear();
  fillings_.resize(store_.bucket_count());
}

void Reducer::set_participants(int divisor, bool new_rank) {
  MutexLock lock(mutex_);
  divisor_ = divisor;
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
  launcher_.give_up();
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
