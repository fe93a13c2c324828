// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/ddp/distributed_data_parallel.h"

#include <c10/core/GradMode.h>
#include <torch/nn/modules/embedding.h>

#include <algorithm>
#include <set>
#include <utility>

#include "gradwire/base/error.h"
#include "gradwire/base/log.h"
#include "gradwire/base/strings.h"
#include "gradwire/base/trace.h"
#include "gradwire/ddp/ddp_core_internal.h"
#include "gradwire/ddp/ddp_options_internal.h"
#include "gradwire/ddp/device_sharing_internal.h"
#include "gradwire/observe/flight_recorder.h"
#include "gradwire/process_group/closable.h"
#include "gradwire/process_group/init.h"
#include "gradwire/process_group/work_internal.h"

namespace gradwire {

using internal::NamedTensor;
using internal::Reducer;
using internal::ReducerOptions;
using internal::without_repeats;

namespace {

using Names = std::vector<std::string>;

// The parameters that need a gradient, or those that need none.
std::vector<NamedTensor> needing_gradient(const std::vector<NamedTensor>& parameters, bool needing) {
  std::vector<NamedTensor> out;
  for (const NamedTensor& parameter : parameters) {
    if (parameter.tensor.requires_grad() == needing) out.push_back(parameter);
  }
  return out;
}

// Adds the weights of embeddings that make sparse gradients. Not through modules(), which needs a module that a
// shared_ptr owns.
void find_sparse_weights(const torch::nn::Module& module, std::set<const c10::TensorImpl*>& found) {
  const auto* embedding = module.as<torch::nn::EmbeddingImpl>();
  const auto* bag = module.as<torch::nn::EmbeddingBagImpl>();
  if (embedding != nullptr && embedding->options.sparse()) found.insert(embedding->weight.unsafeGetTensorImpl());
  if (bag != nullptr && bag->options.sparse()) found.insert(bag->weight.unsafeGetTensorImpl());
  for (const auto& child : module.children()) find_sparse_weights(*child, found);
}

void mark_sparse(std::vector<NamedTensor>& parameters, const torch::nn::Module& module, const DdpOptions& options) {
  std::set<const c10::TensorImpl*> sparse;
  find_sparse_weights(module, sparse);
  for (NamedTensor& parameter : parameters) {
    parameter.sparse = parameter.tensor.requires_grad() && sparse.contains(parameter.tensor.unsafeGetTensorImpl());
    if (parameter.sparse && options.mixed_precision) {
      throw UnsupportedError(concat("DistributedDataParallel: '", parameter.name,
                                    "' makes sparse gradients, which mixed_precision does not support; make its "
                                    "embedding with sparse = false."));
    }
  }
}

std::optional<at::Device> device_of(const DdpOptions& options, const std::vector<NamedTensor>& parameters) {
  if (options.device_ids.empty()) return std::nullopt;
  if (options.device_ids.size() > 1) {
    throw InvalidArgument(concat("DistributedDataParallel: device_ids names ", options.device_ids.size(),
                                 " devices; one rank has one module on one device."));
  }
  for (const NamedTensor& parameter : parameters) {
    const at::Device device = parameter.tensor.device();
    if (!device.is_cuda() || device.index() != options.device_ids.front()) {
      throw InvalidArgument(
          concat("DistributedDataParallel: device_ids names device ", options.device_ids.front(), ", but parameter '",
                 parameter.name, "' is on ", device,
                 "; move the module there first, or leave device_ids empty for a module on the CPU."));
    }
  }
  return at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(options.device_ids.front()));
}

void require_served(const ProcessGroup& group, const std::vector<NamedTensor>& tensors) {
  for (const NamedTensor& tensor : tensors) {
    if (group.supports(tensor.tensor.device().type())) continue;
    throw InvalidArgument(concat("DistributedDataParallel: '", tensor.name, "' is on ", tensor.tensor.device(),
                                 ", which the group '", group.name(),
                                 "' does not serve; make the group with its device: InitOptions::device_id."));
  }
}

std::vector<at::Tensor> tensors_of(const std::vector<NamedTensor>& named) {
  std::vector<at::Tensor> out;
  for (const NamedTensor& item : named) out.push_back(item.tensor);
  return out;
}

// The parameters that `options` delays, each once: a shared parameter has several names. Removes them from `trained`.
std::vector<NamedTensor> take_out_delayed(std::vector<NamedTensor>& trained, const torch::nn::Module& module,
                                          const DdpOptions& options) {
  const auto parameters = module.named_parameters();
  internal::NamedTensors given;
  for (const std::string& name : options.delay_all_reduce_named_params) given.emplace_back(name, parameters[name]);
  std::vector<NamedTensor> delayed = without_repeats(given, {});
  for (const NamedTensor& one : delayed) {
    const auto found = std::find_if(trained.begin(), trained.end(),
                                    [&](const NamedTensor& other) { return other.tensor.is_same(one.tensor); });
    if (found == trained.end()) continue;
    if (found->sparse) {
      throw UnsupportedError(concat("DistributedDataParallel: '", one.name,
                                    "' of delay_all_reduce_named_params makes sparse gradients, which travel in a "
                                    "bucket of their own only; leave it out of delay_all_reduce_named_params."));
    }
    trained.erase(found);
  }
  return delayed;
}

void cast_buffers(const std::vector<NamedTensor>& buffers, const std::optional<MixedPrecision>& types) {
  if (!types || !types->buffer_dtype) return;
  const c10::NoGradGuard no_grad;
  for (at::Tensor buffer : tensors_of(buffers)) {
    if (buffer.is_floating_point() && buffer.scalar_type() != *types->buffer_dtype)
      buffer.set_data(buffer.to(*types->buffer_dtype));
  }
}

}  // namespace

DdpCore::DdpCore(std::shared_ptr<torch::nn::Module> module, DdpOptions options) : parts_(std::make_unique<Parts>()) {
  Parts& p = *parts_;
  if (module == nullptr) throw InvalidArgument("DistributedDataParallel: the module is null.");
  ReducerOptions tuned = internal::reducer_options(options);
  internal::require_names(*module, options);
  std::vector<NamedTensor> parameters =
      without_repeats(internal::named_parameters(*module), options.parameters_and_buffers_to_ignore);
  mark_sparse(parameters, *module, options);
  std::vector<NamedTensor> trained = needing_gradient(parameters, true);
  if (trained.empty()) {
    throw InvalidArgument(
        "DistributedDataParallel: the module has no parameter that needs a gradient; there is nothing to average. Use "
        "the module itself.");
  }
  const std::vector<at::Tensor> with_gradient = tensors_of(trained);
  p.delayed = take_out_delayed(trained, *module, options);
  p.device = device_of(options, parameters);
  p.group = options.process_group != nullptr ? options.process_group : default_group();
  require_served(*p.group, parameters);

  p.module = std::move(module);
  p.module_name = p.module->name();
  p.options = std::move(options);
  p.buffers_travel = p.options.forward_sync_buffers.value_or(p.options.broadcast_buffers);
  p.frozen = needing_gradient(parameters, false);
  p.parameters = tensors_of(parameters);
  p.parameters_seen = internal::TensorIdentities::of_parameters(*p.module);
  p.follow_buffers();
  if (p.options.mixed_precision && p.options.mixed_precision->param_dtype) {
    p.low_precision = std::make_shared<internal::LowPrecision>(p.parameters, *p.options.mixed_precision->param_dtype);
    tuned.on_pass = [low = p.low_precision] { low->restore_at_end(); };
  }
  p.shadow_gradients = std::make_unique<internal::ShadowGradients>(with_gradient);
  p.trained = std::move(trained);
  p.tuned = std::move(tuned);
  p.make_reducer();
  if (p.options.init_sync) {
    const bool with_buffers = p.options.broadcast_buffers || p.options.forward_sync_buffers;
    std::vector<NamedTensor> compared = parameters;
    if (with_buffers) {
      const auto buffers =
          without_repeats(internal::named_buffers(*p.module), p.options.parameters_and_buffers_to_ignore);
      compared.insert(compared.end(), buffers.begin(), buffers.end());
    }
    // The options decide how many duplicates of the group start() makes, so they are compared first.
    p.reducer->start_control();
    const std::vector<c10::Device> devices = internal::devices_of(p.parameters);
    const c10::DeviceType place = devices.empty() ? c10::DeviceType::CPU : devices.front().type();
    internal::verify_replicas(p.reducer->control(), compared, internal::settings_of(p.options, p.tuned, place));
    if (!devices.empty()) internal::require_no_shared_device(p.reducer->control(), devices);
    p.start();
    internal::broadcast_values(p.reducer->control(), p.state(with_buffers));
    p.reducer->prepare_memory();
  }
  p.reducer->attach();
}

namespace {

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
  std::shared_ptr<internal::Reducer> before = std::exchange(reducer, std::move(next));  // goes after the lock
  MutexLock lock(asked_mutex);
  asked = reducer;
}

void DdpCore::Parts::make_reducer() {
  if (options.lanes == -1) tuned.lanes = internal::automatic_lanes(*group);
  if (internal::needs_one_thread(trained, *group)) tuned.lanes = 0;
  tuned.same_bits = internal::sums_in_one_order(*group);
  if (!delayed.empty()) {
    delayed_reduction = std::make_shared<internal::DelayedReduction>(
        delayed, module->named_parameters()[options.param_to_hook_all_reduce], tuned.bucket_dtype);
  }
  ReducerOptions its_options = tuned;
  its_options.delayed = delayed_reduction;
  set_reducer(std::make_shared<Reducer>(trained, group, std::move(its_options)));
  if (delayed_reduction != nullptr) delayed_reduction->set_owner(reducer);
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
  const JoinRound* round = Join::notify(*this);
  // A forward without gradients does not count: one rank may run it alone.
  forward.buffers_due = may_broadcast ? forward.synchronized : p.buffers_due;
  if (round != nullptr) p.agree(&forward, *round);
  p.begin_forward(forward, round);
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
