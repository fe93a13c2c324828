// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The Reducer's own life: its groups, what it does before a forward pass and after an error. reducer_hook.cc has its
// hook, reducer_backward.cc the backward pass.
#include "gradwire/ddp/reducer_internal.h"

#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <utility>

#include "gradwire/backend/registry.h"
#include "gradwire/base/error.h"
#include "gradwire/base/log.h"
#include "gradwire/base/strings.h"
#include "gradwire/process_group/network_payload.h"

namespace gradwire::internal {
namespace {

bool is_ours(const ProcessGroup& group) {
  const std::string name = group.name();
  const auto backends = builtin_backends();
  return std::any_of(backends.begin(), backends.end(), [&](const BackendEntry& entry) { return entry.name == name; });
}

}  // namespace

Reducer::Reducer(std::vector<NamedTensor> parameters, std::shared_ptr<ProcessGroup> group, ReducerOptions options)
    : options_(std::move(options)),
      group_(std::move(group)),
      ours_(is_ours(*group_)),
      alone_(ours_ && group_->size() == 1),
      store_(std::move(parameters), options_.bucket_dtype),
      use_(options_.graph, store_.parameter_count()),
      divisor_(group_->size()) {
  // Before any backward pass has shown the order, one bucket for each dtype and device: the first iteration only
  // learns. Where the order may differ each time there is nothing to learn.
  store_.arrange(plan_initial_buckets(store_.specs(), rebuilds() ? BucketCaps{kUnlimitedBucketBytes} : options_.caps));
  first_bucket_sizes_ = bucket_sizes();
  begin_iteration();
}

Reducer::~Reducer() {
  if (!owner_.is_current()) return;
  detach();
  if (under_way() && !failed_) {
    fail(std::make_exception_ptr(AbortedError(concat("DistributedDataParallel was destroyed on rank ", group_->rank(),
                                                     " before its gradients were reduced."))),
         "its destruction");
  }
  lanes_.clear();  // joins the threads before their groups go
}

void Reducer::detach() noexcept {
  for (std::size_t i = 0; i < accumulators_.size(); ++i) accumulators_[i]->del_post_hook(hook_keys_[i]);
  accumulators_.clear();
  hook_keys_.clear();
}

void Reducer::attach() {
  detach();
  for (std::size_t i = 0; i < store_.parameter_count(); ++i) {
    auto accumulator = torch::autograd::impl::grad_accumulator(store_.parameter(i));
    using Variables = torch::autograd::variable_list;
    auto hook =
        std::make_unique<torch::autograd::utils::LambdaPostHook>([this, i](const Variables& outputs, const Variables&) {
          on_gradient(i);
          return outputs;
        });
    hook_keys_.push_back(accumulator->add_post_hook(std::move(hook)));
    accumulators_.push_back(std::move(accumulator));
  }
}

std::shared_ptr<ProcessGroup> Reducer::duplicate_of(const std::shared_ptr<ProcessGroup>& group) {
  std::shared_ptr<ProcessGroup> duplicate = group->dup();
  aborted_with_us_.push_back(duplicate != nullptr ? duplicate : group);
  return duplicate;
}

std::shared_ptr<ProcessGroup> Reducer::another_group() {
  MutexLock lock(mutex_);
  std::shared_ptr<ProcessGroup> duplicate = duplicate_of(group_);
  return duplicate != nullptr ? duplicate : group_;
}

void Reducer::start() {
  MutexLock lock(mutex_);
  if (control_ != nullptr) return;
  std::shared_ptr<ProcessGroup> control = duplicate_of(group_);
  if (control != nullptr) {
    if (options_.lanes == 0) routes_here_.push_back({group_, duplicate_of(group_)});
    for (int number = 0; number < options_.lanes; ++number) {
      lanes_.push_back(std::make_unique<Lane>(number, std::vector<LaneScope::Route>{{group_, duplicate_of(group_)}}));
    }
  }
  control_ = control != nullptr ? std::move(control) : group_;
  duplicate_hook_groups();
}

void Reducer::prepare_memory() {
  MutexLock lock(mutex_);
  if (!idle()) store_.allocate(*control_);
}

void Reducer::before_forward() {
  owner_.require_current("A DistributedDataParallel");
  MutexLock lock(mutex_);
  if (failed_) throw_failure();
  marks_.forward = Clock::now();
  try {
    require_finished();
    require_own_accumulators();
    adopt_replacement();
  } catch (...) {
    fail_and_throw("its next forward");
  }
  if (control_ == nullptr || idle()) return;
  store_.allocate(*control_);
  if (!rebuilt_ && (order_loaded_ || (rebuilds() && iteration_ > 0))) rebuild();
}

bool Reducer::under_way() const { return expecting_ && std::find(ready_.begin(), ready_.end(), true) != ready_.end(); }

void Reducer::require_finished() {
  if (!under_way()) return;
  const auto missing = missing_parameters();
  throw InvalidArgument(concat(
      "The reduction of the iteration before did not finish on rank ", group_->rank(), " of ", group_->size(), ": ",
      missing.size(), " of ", store_.parameter_count(), " parameters got no gradient: ", join(missing, ", "),
      ". Every parameter that needs a gradient must take part in the loss on every rank, unless find_unused_parameters "
      "is set and all outputs of forward() take part; and backward must run once for each synchronized forward; use "
      "no_sync() to accumulate."));
}

// Autograd makes a parameter a new accumulator, without our hook, when its dtype or device changes: its gradients would
// silently stay local.
void Reducer::require_own_accumulators() const {
  // Mixed precision changes them for each pass, and attaches us again.
  if (options_.on_pass) return;
  for (std::size_t i = 0; i < accumulators_.size(); ++i) {
    if (torch::autograd::impl::try_get_grad_accumulator(store_.parameter(i)) == accumulators_[i]) continue;
    throw InvalidArgument(concat("Parameter '", store_.name(i),
                                 "' changed its dtype or device after DistributedDataParallel was made, on rank ",
                                 group_->rank(), "; change the module first, then wrap it."));
  }
}

std::vector<std::string> Reducer::missing_parameters() const {
  std::vector<std::string> names;
  for (std::size_t i = 0; i < ready_.size(); ++i) {
    if (!ready_[i]) names.push_back(concat("'", store_.name(i), "'"));
  }
  return names;
}

// Once, before the second synchronized forward: buckets in the order in which gradients became ready on rank 0. Before
// the first one, where an order was loaded.
void Reducer::rebuild() {
  ready_order_ = broadcast_integers(*control_, std::move(ready_order_));
  const std::vector<TensorSpec> specs = store_.specs();
  std::vector<TensorSpec> ordered;
  for (const std::int64_t index : ready_order_) ordered.push_back(specs.at(static_cast<std::size_t>(index)));
  // The values of gradients that lie in the memory which is cut anew must not be lost, nor be taken for another
  // parameter's.
  store_.make_gradients_private();
  store_.arrange(plan_buckets(ordered, options_.caps));
  rebuilt_ = true;
  begin_iteration();
}

std::vector<std::string> Reducer::bucket_order() const {
  MutexLock lock(mutex_);
  std::vector<std::string> names;
  if (!rebuilt_) return names;
  for (const std::int64_t index : ready_order_) names.push_back(store_.name(static_cast<std::size_t>(index)));
  return names;
}

void Reducer::set_bucket_order(const std::vector<std::string>& names) {
  MutexLock lock(mutex_);
  if (iteration_ > 0 || under_way()) {
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
  expecting_ = false;
  pass_begun_ = false;
  joined_ = false;
  reducing_ = false;
  next_bucket_ = 0;
  watched_pass_ = -1;
  ready_.assign(store_.parameter_count(), false);
  pending_.resize(store_.bucket_count());
  for (std::size_t i = 0; i < pending_.size(); ++i) pending_[i] = store_.members(i).size();
  flights_.clear();
  flights_.resize(store_.bucket_count());
}

void Reducer::set_participants(int divisor, bool new_rank) {
  MutexLock lock(mutex_);
  divisor_ = divisor;
  if (new_rank) use_.expect_new_rank();
}

void Reducer::expect_backward() {
  MutexLock lock(mutex_);
  expecting_ = true;
}

void Reducer::expect_backward_through(const std::vector<at::Tensor>& outputs) {
  {
    MutexLock lock(mutex_);
    use_.search(outputs, accumulators_);
  }
  for (const at::Tensor& output : outputs) {
    // A leaf would keep the hook for ever, and a parameter among the outputs has one of its own.
    if (!output.defined() || !output.requires_grad() || output.is_leaf()) continue;
    output.register_hook([weak = weak_from_this()](const at::Tensor&) {
      const auto reducer = weak.lock();
      if (reducer == nullptr) return;
      MutexLock lock(reducer->mutex_);
      if (reducer->failed_) return;
      reducer->expecting_ = true;
      reducer->watch_pass();
      reducer->begin_pass();
    });
  }
}

void Reducer::fail(std::exception_ptr error, const std::string& where) {
  {
    MutexLock lock(failure_mutex_);
    if (failure_ != nullptr) return;
    failure_ = error;
    failed_ = true;
  }
  std::string what;
  try {
    std::rethrow_exception(std::move(error));
  } catch (const std::exception& caught) {
    what = describe(caught);
  } catch (...) {
    what = "an exception that is no std::exception";
  }
  const std::string reason =
      concat("DistributedDataParallel on rank ", group_->rank(), " failed in ", where, ": ", what);
  log::error(reason);
  // Among them, without duplicates, the user's own group: its sequence is out of step with the other ranks' now.
  for (const auto& group : aborted_with_us_) group->abort(reason);
}

// The caller holds mutex_. Gradients leave the buckets first: on shared memory a stalled peer may still write into
// those.
void Reducer::throw_failure() {
  running_.wait();
  follow_lanes();
  store_.make_gradients_private();
  std::exception_ptr failure;
  {
    MutexLock lock(failure_mutex_);
    failure = failure_;
  }
  if (options_.rethrow) options_.rethrow(failure);
  std::rethrow_exception(failure);
}

void Reducer::fail_and_throw(const std::string& where) {
  fail(std::current_exception(), where);
  throw_failure();
}

std::uint32_t Reducer::iterations() const {
  MutexLock lock(mutex_);
  return iteration_;
}

std::uint64_t Reducer::payload_bytes() const {
  MutexLock lock(mutex_);
  std::uint64_t bytes = 0;
  // Hooks that run between hosts alone count where they run.
  for (const auto& group : aborted_with_us_) bytes += network_payload_bytes(*group);
  return bytes;
}

std::vector<std::vector<std::size_t>> Reducer::plan() const {
  MutexLock lock(mutex_);
  std::vector<std::vector<std::size_t>> plan;
  for (std::size_t i = 0; i < store_.bucket_count(); ++i) plan.push_back(store_.members(i));
  return plan;
}

}  // namespace gradwire::internal
