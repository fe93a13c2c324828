// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// How a DdpCore is made: which parameters it averages, what it refuses, and how the ranks begin alike.
#include <torch/nn/modules/embedding.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "gradwire/ddp/ddp_core_internal.h"
#include "gradwire/ddp/ddp_options_internal.h"
#include "gradwire/ddp/device_sharing_internal.h"
#include "gradwire/ddp/distributed_data_parallel.h"
#include "gradwire/process_group/changing_ranks.h"
#include "gradwire/process_group/init.h"
#include "gradwire/process_group/work_internal.h"

namespace gradwire {

using internal::NamedTensor;
using internal::Reducer;
using internal::ReducerOptions;
using internal::tensors_of;
using internal::without_repeats;

namespace {

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
  if (p.options.init_sync) p.begin_alike(parameters);
  p.reducer->attach();
}

void DdpCore::Parts::begin_alike(const std::vector<NamedTensor>& named) {
  const bool with_buffers = options.broadcast_buffers || options.forward_sync_buffers;
  std::vector<NamedTensor> compared = named;
  if (with_buffers) {
    const auto of_module = without_repeats(internal::named_buffers(*module), options.parameters_and_buffers_to_ignore);
    compared.insert(compared.end(), of_module.begin(), of_module.end());
  }
  // The options decide how many duplicates of the group start() makes, so they are compared first.
  reducer->start_control();
  const std::vector<c10::Device> devices = internal::devices_of(parameters);
  const c10::DeviceType place = devices.empty() ? c10::DeviceType::CPU : devices.front().type();
  internal::verify_replicas(reducer->control(), compared, internal::settings_of(options, tuned, place));
  const auto* const changing = dynamic_cast<const ChangingRanks*>(group.get());
  const bool has_stand_ins = changing != nullptr && changing->has_stand_ins();  // on this rank's own device
  if (!devices.empty() && !has_stand_ins) internal::require_no_shared_device(reducer->control(), devices);
  start();
  internal::broadcast_values(reducer->control(), state(with_buffers));
  reducer->prepare_memory();
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

}  // namespace gradwire
