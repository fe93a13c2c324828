// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/elastic/training_state_internal.h"

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/serialize/archive.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <set>
#include <span>
#include <sstream>
#include <utility>

#include "gradwire/base/error.h"
#include "gradwire/base/stable_hash.h"
#include "gradwire/base/strings.h"
#include "gradwire/ddp/archive_bytes_internal.h"
#include "gradwire/ddp/ddp_options_internal.h"
#include "gradwire/ddp/first_rank_memory.h"
#include "gradwire/ddp/hook_estimates_internal.h"
#include "gradwire/ddp/hook_state.h"
#include "gradwire/ddp/replica_sync_internal.h"
#include "gradwire/hooks/split_optimizer_internal.h"

namespace gradwire::internal {
namespace {

using torch::serialize::InputArchive;
using torch::serialize::OutputArchive;

// Of the length of what with_shapes() adds to a text.
constexpr std::size_t kLengthDigits = 20;

std::string name_of(const char* kind, std::size_t index) { return concat(kind, index); }

std::int64_t joined(const std::vector<std::int64_t>& hashes) {
  return static_cast<std::int64_t>(stable_hash(std::span<const std::int64_t>(hashes)));
}

void save_hook(const HookState& state, OutputArchive& archive, std::size_t index) {
  OutputArchive own;
  save_hook_state(state, own);
  archive.write(name_of("hook", index), own);
}

HookState load_hook(InputArchive& archive, std::size_t index) {
  InputArchive own;
  archive.read(name_of("hook", index), own);
  return load_hook_state(own);
}

// The tensors of `part` on the CPU without gaps, and their dtypes and sizes behind its text, which is as it was where
// there are none.
StatePart with_shapes(StatePart part, const std::string& name) {
  if (part.tensors.empty()) return part;
  std::string shapes;
  for (at::Tensor& tensor : part.tensors) {
    if (!tensor.defined() || tensor.layout() != at::kStrided || tensor.is_quantized() || tensor.is_meta())
      throw UnsupportedError(
          concat("Elastic: the state '", name, "' gave a tensor that is undefined, sparse, quantized or on 'meta'"));
    tensor = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous();
    shapes += concat(static_cast<int>(tensor.scalar_type()), " ", tensor.dim());
    for (const std::int64_t size : tensor.sizes()) shapes += concat(" ", size);
    shapes += "\n";
  }
  const std::string length = std::to_string(shapes.size());
  part.text += shapes + std::string(kLengthDigits - length.size(), ' ') + length;
  return part;
}

// Back.
StatePart with_their_shapes(ArrivedPart part) {
  if (part.tensors.empty()) return {std::string(part.text)};
  const std::size_t end = part.text.size() - kLengthDigits;
  const std::size_t begin = end - std::stoull(std::string(part.text.substr(end)));
  std::istringstream shapes(std::string(part.text.substr(begin, end - begin)));
  for (at::Tensor& tensor : part.tensors) {
    int dtype = 0;
    std::size_t dimensions = 0;
    shapes >> dtype >> dimensions;
    std::vector<std::int64_t> sizes(dimensions);
    for (std::int64_t& size : sizes) shapes >> size;
    tensor = tensor.view(static_cast<at::ScalarType>(dtype)).view(sizes);
  }
  return {std::string(part.text.substr(0, begin)), std::move(part.tensors)};
}

}  // namespace

std::int64_t hash_of_bits(const std::vector<at::Tensor>& tensors) {
  std::vector<std::int64_t> hashes;
  for (const at::Tensor& tensor : tensors) hashes.push_back(static_cast<std::int64_t>(hash_of_bits(tensor)));
  return joined(hashes);
}

namespace {

// What the user asked of DDP and the ranks of a group must agree on: it decides which collectives DDP calls.
std::string text_of_settings(const DdpCore& core) {
  const DdpOptions& options = core.options();
  const auto asked = reducer_options(options);
  const std::vector<at::Tensor> parameters = core.module().parameters();
  const c10::DeviceType place = parameters.empty() ? c10::DeviceType::CPU : parameters.front().device().type();
  std::ostringstream text;
  for (const NamedSetting& setting : settings_of(options, asked, place))
    text << setting.describe(setting.value) << "\n";
  text << "lanes " << (asked.free_lanes ? "chosen by DDP" : "given") << "\n";
  text << "caps of buckets " << (asked.free_caps ? "chosen by DDP" : "given") << "\n";
  return text.str();
}

std::string text_of_shape(const char* kind, const std::string& name, const at::Tensor& tensor) {
  std::ostringstream text;
  text << kind << " '" << name << "' of " << tensor.scalar_type() << " " << tensor.sizes() << "\n";
  return text.str();
}

}  // namespace

void TrainingState::add(DdpCore& core) {
  cores_.push_back(&core);
  orders_.emplace_back();
  ++in_group_;
}
void TrainingState::add(torch::optim::Optimizer& optimizer) { optimizers_.push_back(&optimizer); }
void TrainingState::add(UserState state) { user_states_.push_back(std::move(state)); }

void TrainingState::add(AddedShards shards) { shards_.push_back(std::move(shards)); }

TrainingState::Details TrainingState::in_detail() const {
  Details details;
  for (const DdpCore* core : cores_) {
    details.settings += text_of_settings(*core);
    for (const auto& item : core->module().named_parameters()) {
      details.shapes += text_of_shape("parameter", item.key(), item.value());
      details.settings +=
          concat("parameter '", item.key(), "' ", item.value().requires_grad() ? "trained" : "frozen", "\n");
    }
    for (const auto& item : core->module().named_buffers())
      details.shapes += text_of_shape("buffer", item.key(), item.value());
  }
  return details;
}

std::string TrainingState::details() const {
  const Details all = in_detail();
  return concat(all.shapes, "\n", all.settings);
}

std::string TrainingState::description() const {
  const Details details = in_detail();
  std::string hooks;
  for (const DdpCore* core : cores_) {
    const auto hook = core->comm_hook();
    hooks += concat(hooks.empty() ? "" : ", ", hook == nullptr ? "average" : hook->identity());
  }
  std::int64_t numel = 0;
  for (const at::Tensor& tensor : tensors()) numel += tensor.numel();
  std::string names;
  for (const UserState& state : user_states_) names += concat(", ", state.name);
  for (const AddedShards& shards : shards_)
    names +=
        concat(", ", shards.state->sharding_identity(), shards.options.copies ? " with copies" : " without copies");
  if (workers_.workers != nullptr) names += concat(", ", workers_.workers->exchange_identity());
  return concat("a model of ", numel, " elements (shapes ", std::hex, stable_hash(details.shapes), std::dec,
                "), hooks: ", hooks, ", DDP's options and frozen parameters: ", std::hex, stable_hash(details.settings),
                std::dec, ", ", optimizers_.size(), " optimizers", names);
}

std::vector<at::Tensor> TrainingState::tensors() const {
  std::vector<at::Tensor> all;
  std::set<const c10::TensorImpl*> seen;
  const auto take = [&](const std::vector<at::Tensor>& tensors) {
    for (const at::Tensor& tensor : tensors) {
      if (tensor.defined() && seen.insert(tensor.unsafeGetTensorImpl()).second) all.push_back(tensor);
    }
  };
  for (const DdpCore* core : cores_) {
    take(core->module().parameters());
    take(core->module().buffers());
  }
  return all;
}

TrainingState::Hashes TrainingState::hashes() const {
  std::set<const c10::TensorImpl*> of_modules;
  for (const at::Tensor& parameter : parameters()) of_modules.insert(parameter.unsafeGetTensorImpl());
  std::vector<std::int64_t> all;
  std::vector<std::int64_t> of_parameters;
  for (const at::Tensor& tensor : tensors()) {
    all.push_back(static_cast<std::int64_t>(hash_of_bits(tensor)));
    if (of_modules.contains(tensor.unsafeGetTensorImpl())) of_parameters.push_back(all.back());
  }
  return {joined(all), joined(of_parameters)};
}

std::vector<HookState> TrainingState::hook_states() const {
  std::vector<HookState> states;
  for (const DdpCore* core : cores_) {
    const auto hook = core->comm_hook();
    states.push_back(hook == nullptr ? HookState() : hook->state_dict());
  }
  return states;
}

std::vector<at::Tensor> TrainingState::parameters() const {
  std::vector<at::Tensor> all;
  for (const DdpCore* core : cores_) {
    for (const at::Tensor& parameter : core->module().parameters()) all.push_back(parameter);
  }
  return all;
}

void TrainingState::wait_for_devices() const {
  std::vector<at::Tensor> all = tensors();
  if (workers_.optimizer != nullptr) {
    for (const auto& group : workers_.optimizer->param_groups())
      all.insert(all.end(), group.params().begin(), group.params().end());
  }
  std::vector<c10::Device> devices;
  for (const at::Tensor& tensor : all) {
    if (tensor.is_cpu() || std::find(devices.begin(), devices.end(), tensor.device()) != devices.end()) continue;
    devices.push_back(tensor.device());
    c10::impl::VirtualGuardImpl(tensor.device().type()).synchronizeDevice(tensor.device().index());
  }
}

void TrainingState::begin_step(bool all) {
  const c10::NoGradGuard no_grad;
  if (all) {
    if (!kept_all_) kept_all_.emplace();
    wait_for_devices();
    kept_all_->keep(parameters(), save_rest());
    wait_for_devices();  // the step may write on other streams than that of the copies
  } else {
    parameters_at_beginning_.keep(parameters());
  }
  kept_buffers_.clear();
  for (const DdpCore* core : cores_) {
    for (const at::Tensor& buffer : core->module().buffers()) kept_buffers_.push_back(buffer.clone());
  }
  kept_hook_states_.resize(cores_.size());
  for (std::size_t i = 0; i < cores_.size(); ++i) {
    if (const auto hook = cores_[i]->comm_hook(); hook != nullptr) kept_hook_states_[i].keep(*hook);
  }
  for (const AddedShards& shards : shards_) shards.state->begin_step();
  for (const UserState& state : user_states_) {
    if (state.begin_step) state.begin_step();
  }
}

bool TrainingState::undo_step() {
  const c10::NoGradGuard no_grad;
  wait_for_devices();
  std::size_t index = 0;
  for (std::size_t i = 0; i < cores_.size(); ++i) {
    for (at::Tensor buffer : cores_[i]->module().buffers()) buffer.copy_(kept_buffers_.at(index++));
    cores_[i]->module().zero_grad(true);
    if (const auto hook = cores_[i]->comm_hook(); hook != nullptr) kept_hook_states_.at(i).revert(*hook);
  }
  if (workers_.optimizer != nullptr) workers_.optimizer->zero_grad(true);
  std::map<const c10::TensorImpl*, std::uint32_t> brought_back;
  for (const AddedShards& shards : shards_) {
    for (const auto& [parameter, version] : shards.state->undo_step())
      brought_back[parameter.unsafeGetTensorImpl()] = version;
  }
  if (kept_all_) {
    load_rest(kept_all_->give_back(parameters()));
    return true;
  }
  return !parameters_at_beginning_.has_changed(parameters(), brought_back);
}

void TrainingState::step_has_counted() {
  for (AddedShards& shards : shards_) shards.kept.clear();
}

std::vector<StatePart> TrainingState::save_rest() const {
  std::vector<StatePart> parts;
  for (torch::optim::Optimizer* optimizer : optimizers_) {
    SplitOptimizer own = split_optimizer(*optimizer);
    for (at::Tensor& tensor : own.tensors) tensor = tensor.cpu();
    parts.push_back({std::move(own.archive), std::move(own.tensors)});
  }
  for (const UserState& state : user_states_) parts.push_back(with_shapes(state.save(), state.name));
  for (const AddedShards& shards : shards_) parts.push_back({shards.state->save_common()});
  if (workers_.options != nullptr) parts.push_back({workers_.options->save_options()});
  return parts;
}

std::vector<at::Tensor> TrainingState::all_tensors() const {
  std::vector<at::Tensor> all = tensors();
  const auto take = [&all](const std::vector<at::Tensor>& more) { all.insert(all.end(), more.begin(), more.end()); };
  for (torch::optim::Optimizer* optimizer : optimizers_) take(large_tensors_of(*optimizer));
  for (const UserState& state : user_states_) {
    if (state.has_tensors) take(with_shapes(state.save(), state.name).tensors);
  }
  return all;
}

std::size_t TrainingState::rest_parts() const noexcept {
  return optimizers_.size() + user_states_.size() + shards_.size() + (workers_.options != nullptr ? 1 : 0);
}

void TrainingState::load_rest(std::vector<ArrivedPart> parts) {
  GRADWIRE_CHECK(parts.size() == rest_parts());
  auto part = parts.begin();
  for (torch::optim::Optimizer* optimizer : optimizers_) {
    load_split(*optimizer, part->text, part->tensors);
    ++part;
  }
  for (const UserState& state : user_states_) state.load(with_their_shapes(std::move(*part++)));
  for (const AddedShards& shards : shards_) shards.state->load_common(std::string(part++->text));
  if (workers_.options != nullptr) workers_.options->load_options(std::string(part++->text));
}

std::string TrainingState::save_shared() const {
  OutputArchive archive;
  const std::vector<HookState> hooks = hook_states();
  for (std::size_t i = 0; i < hooks.size(); ++i) save_hook(shared_part(hooks[i]), archive, i);
  return archive_bytes(archive);
}

void TrainingState::load_shared(const std::string& bytes) {
  InputArchive archive = read_archive(bytes);
  const std::vector<HookState> now = hook_states();
  for (std::size_t i = 0; i < cores_.size(); ++i) {
    const HookState state = join_parts(load_hook(archive, i), local_part(now[i]));
    if (const auto hook = cores_[i]->comm_hook(); hook != nullptr) hook->load_state_dict(state);
  }
}

bool TrainingState::has_memory(const ProcessGroup& group) const {
  return std::all_of(cores_.begin(), cores_.end(), [&group](const DdpCore* core) {
    const auto hook = core->comm_hook();
    return hook == nullptr || gradwire::has_memory(*hook, group);
  });
}

std::string TrainingState::save_local() const {
  const std::vector<HookState> hooks = hook_states();
  if (std::all_of(hooks.begin(), hooks.end(), [](const HookState& state) { return local_part(state).empty(); }))
    return "";
  OutputArchive archive;
  for (std::size_t i = 0; i < hooks.size(); ++i) save_hook(local_part(hooks[i]), archive, i);
  return archive_bytes(archive);
}

void TrainingState::average_local_parts(const std::vector<std::string>& parts) {
  std::vector<std::vector<HookState>> by_hook(cores_.size(), std::vector<HookState>(parts.size()));
  for (std::size_t part = 0; part < parts.size(); ++part) {
    if (parts[part].empty()) continue;  // this member's hooks owe nothing
    InputArchive archive = read_archive(parts[part]);
    for (std::size_t i = 0; i < cores_.size(); ++i) by_hook[i][part] = load_hook(archive, i);
  }
  const std::vector<HookState> now = hook_states();
  for (std::size_t i = 0; i < cores_.size(); ++i) {
    const HookState state = state_for_other_ranks(shared_part(now[i]), by_hook[i]);
    if (const auto hook = cores_[i]->comm_hook(); hook != nullptr) hook->load_state_dict(state);
  }
}

std::string TrainingState::bucket_orders() const {
  std::string text;
  for (std::size_t i = 0; i < orders_.size(); ++i) {
    // In a group, it may have found another order than the one that it was given.
    const auto found = i < in_group_ ? cores_[i]->bucket_order() : std::vector<std::string>();
    text += join(found.empty() ? orders_[i] : found, "\t") + "\n";
  }
  return text;
}

void TrainingState::keep_bucket_orders(const std::string& text) {
  std::istringstream lines(text);
  for (auto& order : orders_) {
    std::string line;
    std::getline(lines, line);
    std::istringstream names(line);
    order.clear();
    for (std::string name; std::getline(names, name, '\t');) order.push_back(name);
  }
}

void TrainingState::leave_group() {
  const std::size_t in_group = std::exchange(in_group_, 0);
  for (std::size_t i = 0; i < cores_.size(); ++i) {
    if (i < in_group) {
      if (std::vector<std::string> order = cores_[i]->bucket_order(); !order.empty()) orders_[i] = std::move(order);
    }
    cores_[i]->leave_group();
  }
  if (workers_.workers != nullptr) workers_.workers->leave_group();
}

void TrainingState::enter_group() {
  for (; in_group_ < cores_.size(); ++in_group_) cores_[in_group_]->enter_group(orders_[in_group_]);
}

}  // namespace gradwire::internal
