// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/ddp/parameter_use_internal.h"

#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <numeric>

namespace gradwire::internal {

ParameterUse::ParameterUse(GraphKind kind, std::size_t parameters)
    : kind_(kind),
      last_firing_(parameters, 0),
      expected_(parameters, 0),
      left_(parameters, 0),
      reached_(parameters, false),
      touched_(parameters, false),
      used_somewhere_(parameters, true) {}

std::vector<std::size_t> ParameterUse::absent() const {
  std::vector<std::size_t> absent;
  for (std::size_t i = 0; i < touched_.size(); ++i) {
    if (kind_ == GraphKind::searched ? !reached_[i] : kind_ == GraphKind::fixed && learnt_ && expected_[i] == 0) {
      absent.push_back(i);
    }
  }
  return absent;
}

void ParameterUse::touch(std::size_t parameter, bool defined) {
  if (defined) touched_[parameter] = true;
}

bool ParameterUse::complete(std::size_t parameter) {
  if (kind_ != GraphKind::fixed) return true;
  if (learnt_) return --left_[parameter] <= 0;
  ++expected_[parameter];
  last_firing_[parameter] = ++firings_;
  return false;
}

std::vector<std::size_t> ParameterUse::order_of_completion() const {
  std::vector<std::size_t> order(last_firing_.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  // Zero means that no gradient came: the subtraction turns it into the largest number.
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return last_firing_[a] - 1 < last_firing_[b] - 1; });
  return order;
}

void ParameterUse::keep(std::size_t parameter, const at::Tensor& grad) {
  const c10::NoGradGuard no_grad;
  kept_[parameter] = grad.defined() ? grad.detach().clone() : at::Tensor();
}

void ParameterUse::share(ProcessGroup& group) {
  if (!needs_map()) return;
  map_ = at::zeros({static_cast<std::int64_t>(touched_.size())}, at::kInt);
  for (std::size_t i = 0; i < touched_.size(); ++i) {
    if (touched_[i]) map_.data_ptr<std::int32_t>()[i] = 1;
  }
  sharing_ = group.all_reduce({map_});
}

template <class Used>
void ParameterUse::learn_map(const Used& used) {
  const bool adds = kind_ == GraphKind::fixed && map_seen_;
  for (std::size_t i = 0; i < used_somewhere_.size(); ++i) used_somewhere_[i] = used(i) || (adds && used_somewhere_[i]);
  map_seen_ = true;
  map_known_ = true;
}

std::vector<std::size_t> ParameterUse::settle_alone() {
  if (needs_map()) learn_map([&](std::size_t i) { return touched_[i]; });
  std::vector<std::size_t> settled;
  for (const auto& [parameter, grad] : kept_) {
    if (used_somewhere_[parameter]) settled.push_back(parameter);
  }
  return settled;
}

void ParameterUse::restore(const std::vector<at::Tensor>& parameters) {
  const c10::NoGradGuard no_grad;
  if (sharing_ != nullptr) {
    sharing_->wait();
    sharing_.reset();
    learn_map([&](std::size_t i) { return map_.const_data_ptr<std::int32_t>()[i] != 0; });
  }
  for (const auto& [parameter, grad] : kept_) {
    if (used_somewhere_[parameter]) continue;
    at::Tensor& now = parameters[parameter].mutable_grad();
    if (grad.defined() && now.defined() && grad.layout() == at::kStrided) {
      now.copy_(grad);
    } else {
      now = grad;
    }
  }
}

std::vector<std::size_t> ParameterUse::unused_anywhere() const {
  std::vector<std::size_t> unused;
  for (std::size_t i = 0; i < used_somewhere_.size(); ++i) {
    if (!used_somewhere_[i]) unused.push_back(i);
  }
  return unused;
}

void ParameterUse::end_iteration(bool joined) {
  kept_.clear();
  sharing_.reset();
  if (!joined) learnt_ = true;
  unused_.clear();
  for (std::size_t i = 0; i < touched_.size(); ++i) {
    if (!touched_[i]) unused_.push_back(i);
  }
  left_ = expected_;
  touched_.assign(touched_.size(), false);
}

}  // namespace gradwire::internal
