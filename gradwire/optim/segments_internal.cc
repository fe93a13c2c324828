// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/optim/segments_internal.h"

#include <ATen/Functions.h>

#include <utility>

#include "gradwire/base/error.h"

namespace gradwire::internal {
namespace {

at::Tensor in_order_of_memory(const at::Tensor& values, const at::Tensor& parameter) {
  at::Tensor ordered = at::empty_strided(parameter.sizes(), parameter.strides(), values.options());
  return ordered.copy_(values).as_strided({parameter.numel()}, {1});
}

bool is_tensor_of(const c10::IValue& value, at::IntArrayRef sizes) {
  return value.isTensor() && value.toTensor().sizes() == sizes;
}

}  // namespace

void split_state(const torch::optim::Optimizer& whole, const std::vector<SteppedSegments>& all) {
  struct Place {
    const SteppedSegments* of;
    std::size_t index;
  };
  std::map<void*, std::vector<Place>> places;
  for (const SteppedSegments& one : all) {
    for (std::size_t i = 0; i < one.segments.size(); ++i)
      places[one.segments[i].parameter.unsafeGetTensorImpl()].push_back({&one, i});
  }
  for (const auto& [key, segments] : places) {
    const auto found = whole.state().find(key);
    StateParts parts;
    if (found != whole.state().end()) parts = parts_of(*found->second);
    const at::Tensor& parameter = segments.front().of->segments[segments.front().index].parameter;
    for (auto& [name, value] : parts) {
      if (is_tensor_of(value, parameter.sizes())) value = in_order_of_memory(value.toTensor(), parameter);
    }
    for (const Place& place : segments) {
      const Segment& segment = place.of->segments[place.index];
      const at::Tensor& tensor = place.of->tensors[place.index];
      auto& states = place.of->optimizer->state();
      states.erase(tensor.unsafeGetTensorImpl());
      if (found == whole.state().end()) continue;
      StateParts mine = parts;
      for (auto& [name, value] : mine) {
        if (is_tensor_of(value, {parameter.numel()}))
          value = value.toTensor().narrow(0, segment.begin, segment.numel).clone();
      }
      auto state = found->second->clone();
      GRADWIRE_CHECK(replace_parts(*state, mine, tensor.device()));
      states[tensor.unsafeGetTensorImpl()] = std::move(state);
    }
  }
}

void JoinedState::add(const SteppedSegments& from) {
  for (std::size_t i = 0; i < from.segments.size(); ++i) {
    const Segment& segment = from.segments[i];
    const auto found = from.optimizer->state().find(from.tensors[i].unsafeGetTensorImpl());
    if (found == from.optimizer->state().end()) continue;
    Joined& joined = parameters_[segment.parameter.unsafeGetTensorImpl()];
    joined.parameter = segment.parameter;
    if (joined.state == nullptr) joined.state = found->second->clone();
    for (auto& [name, value] : parts_of(*found->second)) {
      c10::IValue& known = joined.parts[name];
      if (!is_tensor_of(value, {segment.numel})) {
        known = value;
        continue;
      }
      if (known.isNone()) known = at::zeros({segment.parameter.numel()}, value.toTensor().options());
      known.toTensor().narrow(0, segment.begin, segment.numel).copy_(value.toTensor());
    }
  }
}

void JoinedState::give(torch::optim::Optimizer& whole) {
  for (auto& [key, joined] : parameters_) {
    const at::Tensor& parameter = joined.parameter;
    for (auto& [name, value] : joined.parts) {
      if (is_tensor_of(value, {parameter.numel()}))
        value = value.toTensor().as_strided(parameter.sizes(), parameter.strides());
    }
    GRADWIRE_CHECK(replace_parts(*joined.state, joined.parts, at::kCPU));
    whole.state()[key] = std::move(joined.state);
  }
  parameters_.clear();
}

}  // namespace gradwire::internal
