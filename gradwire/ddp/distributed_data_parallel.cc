// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/ddp/distributed_data_parallel.h"

#include <c10/core/GradMode.h>

#include <algorithm>
#include <utility>

#include "gradwire/base/error.h"
#include "gradwire/base/log.h"
#include "gradwire/base/strings.h"
#include "gradwire/base/trace.h"
#include "gradwire/ddp/ddp_core_internal.h"
#include "gradwire/observe/flight_recorder.h"
#include "gradwire/process_group/closable.h"
#include "gradwire/process_group/work_internal.h"

namespace gradwire {

using internal::NamedTensor;
using internal::Reducer;
using internal::tensors_of;
using internal::without_repeats;

namespace {

void cast_buffers(const std::vector<NamedTensor>& buffers, const std::optional<MixedPrecision>& types) {
  if (!types || !types->buffer_dtype) return;
  const c10::NoGradGuard no_grad;
  for (at::Tensor buffer : tensors_of(buffers)) {
    if (buffer.is_floating_point() && buffer.scalar_type() != *types->buffer_dtype)
      buffer.set_data(buffer.to(*types->buffer_dtype));
  }
}

[[noreturn]] void throw_without_ranks() {
  throw InvalidArgument(
      "a DistributedDataParallel was used between leave_group() and enter_group(), where it has no ranks; call "
      "enter_group() first.");
}

}  // namespace

internal::Reducer& DdpCore::Parts::in_group() const {
  if (reducer == nullptr) throw_without_ranks();
  return *reducer;
}

std::shared_ptr<internal::Reducer> DdpCore::Parts::in_group_for_question() const {
  std::shared_ptr<internal::Reducer> reducer_now = reducer_if_any();
  if (reducer_now == nullptr) throw_without_ranks();
  return reducer_now;
}

std::shared_ptr<internal::Reducer> DdpCore::Parts::reducer_if_any() const {
  MutexLock lock(asked_mutex);
  return asked;
}

void DdpCore::Parts::set_reducer(std::shared_ptr<internal::Reducer> next) {
  passes.reset();
  std::shared_ptr<internal::Reducer> before = std::exchange(reducer, std::move(next));  // goes after the lock
  if (reducer != nullptr) passes.emplace(trained, reducer);
  MutexLock lock(asked_mutex);
  asked = reducer;
}

DdpCore::~DdpCore() {
  if (!parts_ || !parts_->low_precision) return;
  try {
    parts_->low_precision->restore();
  } catch (const std::exception& error) {
    log::error(error.what());
  }
}

const DdpOptions& DdpCore::options() const noexcept { return parts_->options; }
const std::shared_ptr<ProcessGroup>& DdpCore::process_group() const noexcept { return parts_->group; }
torch::nn::Module& DdpCore::module() const noexcept { return *parts_->module; }
std::vector<at::Tensor> DdpCore::parameters() const {
  std::vector<at::Tensor> parameters;
  for (const internal::NamedTensor& each : without_repeats(internal::named_parameters(module()), {}))
    parameters.push_back(each.tensor);
  return parameters;
}
void DdpCore::register_comm_hook(std::shared_ptr<CommHook> hook) {
  parts_->in_group().set_hook(hook);
  parts_->hook = std::move(hook);
}
void DdpCore::set_buffers(const std::vector<std::pair<std::string, at::Tensor>>& buffers) {
  parts_->buffers_given = true;
  parts_->use_buffers(without_repeats(buffers, parts_->options.parameters_and_buffers_to_ignore));
}
void DdpCore::save(torch::serialize::OutputArchive& archive) const {
  parts_->require_full_precision("torch::save()");
  parts_->module->save(archive);
}
void DdpCore::load(torch::serialize::InputArchive& archive) {
  parts_->require_full_precision("torch::load()");
  parts_->module->load(archive);
}
void DdpCore::replace_comm_hook(std::shared_ptr<CommHook> hook) {
  parts_->in_group().replace_hook(hook);
  parts_->hook = std::move(hook);
}
const std::shared_ptr<CommHook>& DdpCore::comm_hook() const noexcept { return parts_->hook; }
bool DdpCore::set_sync(bool sync) noexcept { return std::exchange(parts_->sync, sync); }
void DdpCore::set_forward_sync_buffers(bool sync) noexcept { parts_->buffers_travel = sync; }
bool DdpCore::buffers_are_due() const noexcept { return parts_->buffers_due; }
void DdpCore::set_buffers_due(bool due) noexcept { parts_->buffers_due = due; }
bool DdpCore::moves_inputs() const noexcept { return parts_->device.has_value() || parts_->low_precision != nullptr; }
at::Tensor DdpCore::to_device(at::Tensor tensor) const {
  if (!tensor.defined()) return tensor;
  if (parts_->device) tensor = tensor.to(*parts_->device);
  return parts_->low_precision && tensor.is_floating_point() ? tensor.to(*parts_->options.mixed_precision->param_dtype)
                                                             : tensor;
}
std::vector<std::string> DdpCore::bucket_order() const { return parts_->in_group_for_question()->bucket_order(); }
std::vector<std::string> DdpCore::next_bucket_order() const {
  return parts_->in_group_for_question()->next_bucket_order();
}
void DdpCore::set_bucket_order(const std::vector<std::string>& names) { parts_->in_group().set_bucket_order(names); }
std::vector<std::vector<std::size_t>> DdpCore::bucket_plan() const { return parts_->in_group_for_question()->plan(); }
std::uint64_t DdpCore::payload_bytes() const { return parts_->in_group_for_question()->payload_bytes(); }
std::uint32_t DdpCore::iterations() const { return parts_->in_group_for_question()->iterations(); }

void DdpCore::require_well() const {
  const std::shared_ptr<Reducer> reducer = parts_->reducer_if_any();
  if (reducer == nullptr) return;
  if (const std::exception_ptr error = reducer->error()) std::rethrow_exception(error);
}

DdpLoggingData DdpCore::logging_data() const {
  const Parts& p = *parts_;
  DdpLoggingData data;
  data.rank = p.group->rank();
  data.world_size = p.group->size();
  data.backend_name = p.group->name();
  data.module_name = p.module_name;
  data.broadcast_buffers = p.buffers_travel;
  data.gradient_as_bucket_view = p.options.gradient_as_bucket_view;
  data.find_unused_parameters = p.options.find_unused_parameters && !p.options.static_graph;
  data.static_graph = p.options.static_graph;
  data.mixed_precision = p.options.mixed_precision.has_value();
  data.join_uneven_inputs = p.joined_ever;
  data.ignored_parameters = p.options.parameters_and_buffers_to_ignore;
  p.in_group_for_question()->report(data);
  return data;
}

void DdpCore::before_forward() {
  const observe::CallerLine caller(__builtin_return_address(0));
  Parts& p = *parts_;
  p.in_group().require_outside_hook("forward()");
  if (c10::GradMode::is_enabled()) trace::point("ddp.forward", p.group->rank());
  p.synchronized_forward = false;
  Parts::Forward forward;
  forward.synchronized = p.sync && c10::GradMode::is_enabled();
  const bool may_broadcast = c10::GradMode::is_enabled() && p.buffers_travel && p.module->is_training();
  const bool is_due = may_broadcast && p.buffers_due && p.reducer != nullptr && !p.reducer->alone();
  if (is_due) p.follow_buffers();  // needed to know whether there are buffers
  forward.buffers = is_due && !p.buffers.empty();
  if (forward.synchronized || forward.buffers) p.require_open_group();
  if (forward.synchronized) p.require_known_parameters();
  if (c10::GradMode::is_enabled()) p.shadow_gradients->leave();
  const JoinRound* round = Join::notify(*this);  // it asks for the forward before this one
  const auto begun_before =
      std::exchange(p.begun_in_join, round != nullptr ? std::optional(p.reducer->iterations()) : std::nullopt);
  // A forward without gradients does not count: one rank may run it alone.
  forward.buffers_due = may_broadcast ? forward.synchronized : p.buffers_due;
  if (round != nullptr) p.agree(&forward, *round);
  p.begin_forward(forward, round);
  if (!forward.synchronized) p.begun_in_join = begun_before;
  p.buffers_due = forward.buffers_due;
  if (p.low_precision && p.low_precision->lower()) {
    p.reducer->attach();
    if (p.delayed_reduction) p.delayed_reduction->attach();
  }
  p.synchronized_forward = forward.synchronized;
  if (p.delayed_reduction) p.delayed_reduction->set_divisor(p.divisor(round));
}

void DdpCore::after_forward(const std::vector<at::Tensor>& outputs) {
  Parts& p = *parts_;
  if (p.low_precision) p.low_precision->restore_after(outputs);
  // Also of a local forward: which parameters its backward pass uses counts in the next synchronized one.
  if (c10::GradMode::is_enabled() && p.reducer != nullptr) {
    p.reducer->follow_accumulators();
    if (p.delayed_reduction) p.delayed_reduction->follow();
  }
  if (p.synchronized_forward) p.reducer->expect_backward(outputs);
}

void DdpCore::abandon_forward() noexcept {
  if (parts_->low_precision) parts_->low_precision->abandon_forward();
}

void DdpCore::Parts::require_open_group() const {
  internal::require_open_group(*group, "DistributedDataParallel", "wrap the module again");
}

void DdpCore::Parts::require_known_parameters() {
  for (const NamedTensor& parameter : frozen) {
    if (!parameter.tensor.requires_grad()) continue;
    throw InvalidArgument(concat("Parameter '", parameter.name, "' needs a gradient on rank ", group->rank(),
                                 ", but did not when DistributedDataParallel was made, which therefore does not "
                                 "average it. Wrap the module while all that is ever trained needs a gradient, and "
                                 "freeze it afterwards (with find_unused_parameters), or name it in "
                                 "parameters_and_buffers_to_ignore."));
  }
  auto seen = internal::TensorIdentities::of_parameters(*module);
  if (seen == parameters_seen) return;
  for (const NamedTensor& now :
       without_repeats(internal::named_parameters(*module), options.parameters_and_buffers_to_ignore)) {
    const auto is_now = [&](const at::Tensor& known) { return known.is_same(now.tensor); };
    if (!now.tensor.requires_grad() || std::any_of(parameters.begin(), parameters.end(), is_now)) continue;
    throw InvalidArgument(concat("Parameter '", now.name, "' of the module on rank ", group->rank(),
                                 " was replaced or added after DistributedDataParallel was made, which therefore does "
                                 "not average it. Change the values of parameters in place (torch::load() into the "
                                 "module does), or wrap the module again."));
  }
  parameters_seen = std::move(seen);
}

void DdpCore::Parts::follow_buffers() {
  if (buffers_given) return;
  auto seen = internal::TensorIdentities::of_buffers(*module);
  if (seen == buffers_seen) return;
  buffers_seen = std::move(seen);
  use_buffers(without_repeats(internal::named_buffers(*module), options.parameters_and_buffers_to_ignore));
}

void DdpCore::Parts::use_buffers(const std::vector<NamedTensor>& named) {
  cast_buffers(named, options.mixed_precision);
  buffers = tensors_of(named);
}

std::vector<at::Tensor> DdpCore::Parts::state(bool with_buffers) const {
  std::vector<at::Tensor> state = parameters;
  if (with_buffers) state.insert(state.end(), buffers.begin(), buffers.end());
  return state;
}

void DdpCore::Parts::require_full_precision(const char* what) const {
  if (!low_precision || !low_precision->is_lowered()) return;
  throw InvalidArgument(concat(what, " of a DistributedDataParallel with mixed_precision was called on rank ",
                               group->rank(),
                               " between forward() and the end of the backward pass, while parameters "
                               "have the lower precision; call it before or after."));
}

}  // namespace gradwire
