// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/ddp/distributed_data_parallel.h"

#include <c10/core/GradMode.h>
#include <torch/nn/modules/embedding.h>

#include <cmath>
#include <set>
#include <utility>

#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "gradwire/ddp/reducer_internal.h"
#include "gradwire/process_group/init.h"

namespace gradwire {

using internal::NamedSetting;
using internal::NamedTensor;
using internal::Reducer;
using internal::ReducerOptions;

namespace {

constexpr int kMaxLanes = 8;
constexpr int kAutomaticLanes = 1;

void refuse_later_options(const DdpOptions& options) {
  if (options.mixed_precision) {
    throw UnsupportedError(
        "DistributedDataParallel: the option mixed_precision is not available in this version; leave it false.");
  }
}

ReducerOptions reducer_options(const DdpOptions& options) {
  if (options.lanes < -1 || options.lanes > kMaxLanes) {
    throw InvalidArgument(concat("DistributedDataParallel: lanes = ", options.lanes, "; it must be 0 to ", kMaxLanes,
                                 ", or -1 for automatic."));
  }
  ReducerOptions out;
  out.gradient_as_bucket_view = options.gradient_as_bucket_view;
  out.graph = options.static_graph             ? internal::GraphKind::fixed
              : options.find_unused_parameters ? internal::GraphKind::searched
                                               : internal::GraphKind::every_parameter;
  out.lanes = options.lanes == -1 ? kAutomaticLanes : options.lanes;
  if (options.bucket_cap_mb) {
    const double bytes = *options.bucket_cap_mb * 1024 * 1024;
    if (!(bytes >= 1 && bytes < 0x1p62)) {
      throw InvalidArgument(concat("DistributedDataParallel: bucket_cap_mb = ", *options.bucket_cap_mb,
                                   "; it must be a positive number of MiB."));
    }
    out.caps = bucket_caps(static_cast<std::size_t>(bytes));
  }
  return out;
}

// Each tensor once, under its first name: a shared parameter has several.
std::vector<NamedTensor> without_repeats(const std::vector<std::pair<std::string, at::Tensor>>& tensors) {
  std::vector<NamedTensor> out;
  std::set<const c10::TensorImpl*> seen;
  for (const auto& [name, tensor] : tensors) {
    if (tensor.defined() && seen.insert(tensor.unsafeGetTensorImpl()).second) out.push_back({name, tensor});
  }
  return out;
}

std::vector<NamedTensor> needing_gradient(const std::vector<NamedTensor>& parameters) {
  std::vector<NamedTensor> out;
  for (const NamedTensor& parameter : parameters) {
    if (parameter.tensor.requires_grad()) out.push_back(parameter);
  }
  if (out.empty()) {
    throw InvalidArgument(
        "DistributedDataParallel: the module has no parameter that needs a gradient; there is nothing to average. Use "
        "the module itself.");
  }
  return out;
}

void refuse_sparse_embeddings(const torch::nn::Module& module) {
  for (const auto& item : module.named_modules()) {
    const auto* embedding = item.value()->as<torch::nn::EmbeddingImpl>();
    const auto* bag = item.value()->as<torch::nn::EmbeddingBagImpl>();
    if ((embedding != nullptr && embedding->options.sparse()) || (bag != nullptr && bag->options.sparse())) {
      throw UnsupportedError(
          concat("DistributedDataParallel: the embedding '", item.key(),
                 "' makes sparse gradients, which are not supported yet; make it with sparse = false."));
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
                                 ", which the group '", group.name(), "' does not serve."));
  }
}

std::vector<at::Tensor> tensors_of(const std::vector<NamedTensor>& named) {
  std::vector<at::Tensor> out;
  for (const NamedTensor& item : named) out.push_back(item.tensor);
  return out;
}

}  // namespace

struct DdpCore::Parts {
  std::shared_ptr<torch::nn::Module> module;
  DdpOptions options;
  std::shared_ptr<ProcessGroup> group;
  std::optional<at::Device> device;
  std::vector<at::Tensor> buffers;
  std::shared_ptr<Reducer> reducer;
  bool sync = true;
  // As in PyTorch: buffers travel when the training forward before was synchronized, so the first one after no_sync()
  // skips them.
  bool buffers_due = true;
  bool synchronized_forward = false;  // between before_forward() and after_forward()
};

DdpCore::DdpCore(std::shared_ptr<torch::nn::Module> module, DdpOptions options) : parts_(std::make_unique<Parts>()) {
  if (module == nullptr) throw InvalidArgument("DistributedDataParallel: the module is null.");
  refuse_sparse_embeddings(*module);
  parts_->module = module;
  start({module->named_parameters().pairs(), module->named_buffers().pairs()}, std::move(options), {});
}

DdpCore::DdpCore(ModuleTensors module, DdpOptions options, Rethrow rethrow) : parts_(std::make_unique<Parts>()) {
  start(module, std::move(options), std::move(rethrow));
}

void DdpCore::start(const ModuleTensors& module, DdpOptions options, Rethrow rethrow) {
  Parts& p = *parts_;
  refuse_later_options(options);
  ReducerOptions tuned = reducer_options(options);
  tuned.rethrow = std::move(rethrow);
  const std::vector<NamedTensor> parameters = without_repeats(module.parameters);
  const std::vector<NamedTensor> trained = needing_gradient(parameters);
  const std::vector<NamedTensor> buffers = without_repeats(module.buffers);
  p.device = device_of(options, parameters);
  p.group = options.process_group != nullptr ? options.process_group : default_group();
  require_served(*p.group, parameters);

  p.options = std::move(options);
  p.buffers = tensors_of(buffers);
  p.reducer = std::make_shared<Reducer>(trained, p.group, tuned);
  if (p.options.init_sync) {
    p.reducer->start();
    std::vector<NamedTensor> state = parameters;
    if (p.options.broadcast_buffers) state.insert(state.end(), buffers.begin(), buffers.end());
    const std::vector<NamedSetting> settings{
        {"gradient_as_bucket_view", tuned.gradient_as_bucket_view ? 1 : 0},
        {"lanes", tuned.lanes},
        {"kind of graph (static_graph, find_unused_parameters)", static_cast<std::int64_t>(tuned.graph)},
        {"first bucket's cap in bytes", static_cast<std::int64_t>(tuned.caps.front())},
        {"later buckets' cap in bytes", static_cast<std::int64_t>(tuned.caps.back())},
        {"broadcast_buffers", p.options.broadcast_buffers ? 1 : 0}};
    internal::verify_replicas(p.reducer->control(), state, settings);
    internal::broadcast_values(p.reducer->control(), tensors_of(state));
    p.reducer->prepare_memory();
  }
  p.reducer->attach();
}

DdpCore::~DdpCore() = default;

const DdpOptions& DdpCore::options() const noexcept { return parts_->options; }
const std::shared_ptr<ProcessGroup>& DdpCore::process_group() const noexcept { return parts_->group; }
torch::nn::Module& DdpCore::module() const noexcept { return *parts_->module; }
void DdpCore::register_comm_hook(std::shared_ptr<CommHook> hook) { parts_->reducer->set_hook(std::move(hook)); }
void DdpCore::replace_comm_hook(std::shared_ptr<CommHook> hook) { parts_->reducer->replace_hook(std::move(hook)); }
bool DdpCore::set_sync(bool sync) noexcept { return std::exchange(parts_->sync, sync); }
bool DdpCore::moves_inputs() const noexcept { return parts_->device.has_value(); }
at::Tensor DdpCore::to_device(at::Tensor tensor) const {
  return tensor.defined() ? tensor.to(*parts_->device) : tensor;
}
std::vector<std::string> DdpCore::bucket_order() const { return parts_->reducer->bucket_order(); }
void DdpCore::set_bucket_order(const std::vector<std::string>& names) { parts_->reducer->set_bucket_order(names); }
std::vector<std::vector<std::size_t>> DdpCore::bucket_plan() const { return parts_->reducer->plan(); }
std::uint64_t DdpCore::payload_bytes() const { return parts_->reducer->payload_bytes(); }
std::uint32_t DdpCore::iterations() const { return parts_->reducer->iterations(); }

void DdpCore::before_forward() { before_forward(parts_->module->is_training()); }

void DdpCore::before_forward(bool training) {
  Parts& p = *parts_;
  p.synchronized_forward = p.sync && c10::GradMode::is_enabled();
  if (p.synchronized_forward) {
    if (!p.reducer->started()) p.reducer->start();
    p.reducer->before_forward();
  }
  if (!p.options.broadcast_buffers || !training) return;
  if (p.synchronized_forward && p.buffers_due && !p.reducer->alone()) {
    internal::broadcast_values(p.reducer->control(), p.buffers);
  }
  p.buffers_due = p.synchronized_forward;
}

void DdpCore::after_forward(const std::vector<at::Tensor>& outputs) {
  if (!parts_->synchronized_forward) return;
  parts_->reducer->expect_backward();
  parts_->reducer->expect_backward_through(outputs);
}

}  // namespace gradwire
