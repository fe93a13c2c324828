// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/ddp/delayed_reduction_internal.h"

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/engine.h>

#include <algorithm>
#include <utility>

#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "gradwire/process_group/dtype_internal.h"

namespace gradwire::internal {

DelayedReduction::DelayedReduction(std::vector<NamedTensor> parameters, at::Tensor trigger,
                                   std::optional<at::ScalarType> reduce_dtype)
    : claims_(parameters),
      trigger_(std::move(trigger)),
      on_cpu_(std::all_of(parameters.begin(), parameters.end(),
                          [](const NamedTensor& parameter) { return parameter.tensor.is_cpu(); })) {
  MutexLock lock(mutex_);
  for (NamedTensor& parameter : parameters) {
    const at::ScalarType type = parameter.tensor.scalar_type();
    const at::ScalarType travels = parameter.tensor.is_floating_point() ? reduce_dtype.value_or(type) : type;
    entries_.push_back({std::move(parameter.name), std::move(parameter.tensor), type, travels});
  }
}

void DelayedReduction::set_group(std::shared_ptr<ProcessGroup> group, bool own) {
  MutexLock lock(mutex_);
  group_ = std::move(group);
  own_group_ = own;
}

bool DelayedReduction::has_group() const {
  MutexLock lock(mutex_);
  return group_ != nullptr;
}

bool DelayedReduction::has_own_group() const {
  MutexLock lock(mutex_);
  return own_group_;
}

void DelayedReduction::attach() {
  MutexLock lock(mutex_);
  attach_locked();
}

void DelayedReduction::attach_locked() {
  std::vector<at::Tensor> parameters;
  for (const Entry& entry : entries_) parameters.push_back(entry.parameter);
  parameters.push_back(trigger_);
  hooks_.attach(parameters, [weak = weak_from_this()](std::size_t number) {
    if (const auto self = weak.lock()) self->on_gradient(number);
  });
}

void DelayedReduction::set_owner(std::weak_ptr<Owner> owner) {
  MutexLock lock(mutex_);
  owner_ = std::move(owner);
}

std::shared_ptr<DelayedReduction::Owner> DelayedReduction::owner() const {
  MutexLock lock(mutex_);
  return owner_.lock();
}

void DelayedReduction::follow() {
  MutexLock lock(mutex_);
  for (std::size_t i = 0; i < hooks_.size(); ++i) {
    if (!hooks_.is_of(i, i < entries_.size() ? entries_[i].parameter : trigger_)) return attach_locked();
  }
}

void DelayedReduction::set_divisor(int divisor) {
  MutexLock lock(mutex_);
  divisor_ = divisor;
}

bool DelayedReduction::current_pass_passes_by() const {
  MutexLock lock(mutex_);
  return hooks_.current_pass_passes_by();
}

void DelayedReduction::begin() {
  in_pass_ = true;
  triggered_ = false;
  under_way_.clear();
  for (Entry& entry : entries_) entry.arrived = false;
}

void DelayedReduction::begin_pass() {
  MutexLock lock(mutex_);
  begin();
  torch::autograd::Engine::get_default_engine().queue_callback([self = shared_from_this()] { self->finish(); });
}

void DelayedReduction::on_gradient(std::size_t number) {
  const std::shared_ptr<Owner> its_owner = owner();
  if (its_owner == nullptr) return;
  its_owner->on_delayed_gradient();
  try {
    take(number);
  } catch (...) {
    its_owner->fail("backward, at a delayed gradient");
  }
}

void DelayedReduction::take(std::size_t number) {
  MutexLock lock(mutex_);
  if (!in_pass_) return;
  Entry* const entry = number < entries_.size() ? &entries_[number] : nullptr;  // null: the trigger
  if (entry != nullptr && !under_way_.empty()) {
    throw InvalidArgument(concat("Parameter '", entry->name, "' of delay_all_reduce_named_params got another gradient ",
                                 "after the reduction of the delayed gradients had begun, on rank ", group_->rank(),
                                 "; name as param_to_hook_all_reduce one whose gradient comes after all of theirs."));
  }
  if (entry == nullptr) triggered_ = true;
  if (entry != nullptr) entry->arrived = true;
  // Other calls use the group too: the order of calls must not depend on the order of gradients. On a device the
  // duplicates of a group share one sequence of calls.
  if (!own_group_ || !on_cpu_ || !triggered_ || !under_way_.empty()) return;
  if (std::all_of(entries_.begin(), entries_.end(), [](const Entry& each) { return each.arrived; })) start(false);
}

void DelayedReduction::shadow() {
  try {
    MutexLock lock(mutex_);
    begin();
    start(/*zeros=*/true);
    finish_locked();
  } catch (...) {
    if (const std::shared_ptr<Owner> its_owner = owner()) its_owner->fail("the reduction of its delayed gradients");
    throw;
  }
}

void DelayedReduction::start(bool zeros) {
  const c10::NoGradGuard no_grad;
  for (Entry& entry : entries_) {
    const auto same = std::find_if(under_way_.begin(), under_way_.end(), [&](const Message& message) {
      return message.entries.front()->travels == entry.travels &&
             message.entries.front()->parameter.device() == entry.parameter.device();
    });
    Message& message = same != under_way_.end() ? *same : under_way_.emplace_back();
    message.entries.push_back(&entry);
  }
  for (Message& message : under_way_) {
    std::vector<at::Tensor> parts;
    for (const Entry* entry : message.entries) {
      const at::Tensor& grad = entry->parameter.grad();
      const auto options = at::TensorOptions(entry->parameter.device()).dtype(entry->travels);
      parts.push_back(!zeros && grad.defined() ? grad.detach().to(entry->travels)
                                               : at::zeros(entry->parameter.sizes(), options));
    }
    message.buffer = at::flatten_dense_tensors(parts);
    if (divides_before_sum(message.buffer.scalar_type())) message.buffer.div_(divisor_);
    message.work = group_->all_reduce({message.buffer});
  }
}

void DelayedReduction::finish() {
  try {
    MutexLock lock(mutex_);
    if (!in_pass_) return;
    if (under_way_.empty()) start(/*zeros=*/false);
    finish_locked();
  } catch (...) {
    if (const std::shared_ptr<Owner> its_owner = owner()) its_owner->fail("the reduction of its delayed gradients");
    throw;
  }
}

void DelayedReduction::finish_locked() {
  const c10::NoGradGuard no_grad;
  in_pass_ = false;
  for (const Message& message : std::exchange(under_way_, {})) {
    message.work->wait();
    if (!divides_before_sum(message.buffer.scalar_type())) message.buffer.div_(divisor_);
    std::vector<at::Tensor> parameters;
    for (const Entry* entry : message.entries) parameters.push_back(entry->parameter);
    const std::vector<at::Tensor> averages = at::unflatten_dense_tensors(message.buffer, parameters);
    for (std::size_t i = 0; i < averages.size(); ++i) {
      const Entry& entry = *message.entries[i];
      at::Tensor& grad = entry.parameter.mutable_grad();
      if (!grad.defined() || grad.scalar_type() != entry.type) {
        grad = at::empty_like(entry.parameter, entry.parameter.options().dtype(entry.type).requires_grad(false));
      }
      grad.copy_(averages[i]);
    }
  }
}

}  // namespace gradwire::internal
