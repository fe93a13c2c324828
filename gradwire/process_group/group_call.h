// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// A call on a group as a value: which collective or message, and with what. For groups that treat all calls alike, as
// those that pass them on to another group: call_group.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <tuple>
#include <variant>
#include <vector>

#include "gradwire/process_group/process_group.h"

namespace gradwire {

// One struct a method of ProcessGroup, kName, with its arguments. Tensors and lists are the caller's and are there
// until the call has returned its Work. `options` (messages have none) are the call's own and may be changed before it
// goes on. on() makes the same call on another group. read_first() has what holds tensors, what is read before what is
// written.

struct BroadcastCall {
  static constexpr const char* kName = "broadcast";
  Tensors& tensors;
  BroadcastOptions options;
  std::shared_ptr<Work> on(ProcessGroup& group) const { return group.broadcast(tensors, options); }
  auto read_first() const { return std::tie(tensors); }
};

struct AllReduceCall {
  static constexpr const char* kName = "all_reduce";
  Tensors& tensors;
  AllReduceOptions options;
  std::shared_ptr<Work> on(ProcessGroup& group) const { return group.all_reduce(tensors, options); }
  auto read_first() const { return std::tie(tensors); }
};

struct ReduceCall {
  static constexpr const char* kName = "reduce";
  Tensors& tensors;
  ReduceOptions options;
  std::shared_ptr<Work> on(ProcessGroup& group) const { return group.reduce(tensors, options); }
  auto read_first() const { return std::tie(tensors); }
};

struct AllGatherCall {
  static constexpr const char* kName = "all_gather";
  std::vector<Tensors>& outputs;
  Tensors& inputs;
  AllGatherOptions options;
  std::shared_ptr<Work> on(ProcessGroup& group) const { return group.all_gather(outputs, inputs, options); }
  auto read_first() const { return std::tie(inputs, outputs); }
};

struct AllGatherIntoTensorCall {
  static constexpr const char* kName = "all_gather_into_tensor";
  at::Tensor& output;
  at::Tensor& input;
  AllGatherOptions options;
  std::shared_ptr<Work> on(ProcessGroup& group) const { return group.all_gather_into_tensor(output, input, options); }
  auto read_first() const { return std::tie(input, output); }
};

struct GatherCall {
  static constexpr const char* kName = "gather";
  std::vector<Tensors>& outputs;
  Tensors& inputs;
  GatherOptions options;
  std::shared_ptr<Work> on(ProcessGroup& group) const { return group.gather(outputs, inputs, options); }
  auto read_first() const { return std::tie(inputs, outputs); }
};

struct ScatterCall {
  static constexpr const char* kName = "scatter";
  Tensors& outputs;
  std::vector<Tensors>& inputs;
  ScatterOptions options;
  std::shared_ptr<Work> on(ProcessGroup& group) const { return group.scatter(outputs, inputs, options); }
  auto read_first() const { return std::tie(outputs, inputs); }
};

struct ReduceScatterCall {
  static constexpr const char* kName = "reduce_scatter";
  Tensors& outputs;
  std::vector<Tensors>& inputs;
  ReduceScatterOptions options;
  std::shared_ptr<Work> on(ProcessGroup& group) const { return group.reduce_scatter(outputs, inputs, options); }
  auto read_first() const { return std::tie(outputs, inputs); }
};

struct ReduceScatterTensorCall {
  static constexpr const char* kName = "reduce_scatter_tensor";
  at::Tensor& output;
  at::Tensor& input;
  ReduceScatterOptions options;
  std::shared_ptr<Work> on(ProcessGroup& group) const { return group.reduce_scatter_tensor(output, input, options); }
  auto read_first() const { return std::tie(input, output); }
};

struct AllToAllCall {
  static constexpr const char* kName = "all_to_all";
  Tensors& outputs;
  Tensors& inputs;
  AllToAllOptions options;
  std::shared_ptr<Work> on(ProcessGroup& group) const { return group.all_to_all(outputs, inputs, options); }
  auto read_first() const { return std::tie(inputs, outputs); }
};

struct AllToAllSingleCall {
  static constexpr const char* kName = "all_to_all_single";
  at::Tensor& output;
  at::Tensor& input;
  std::vector<std::int64_t>& output_splits;
  std::vector<std::int64_t>& input_splits;
  AllToAllOptions options;
  std::shared_ptr<Work> on(ProcessGroup& group) const {
    return group.all_to_all_single(output, input, output_splits, input_splits, options);
  }
  auto read_first() const { return std::tie(input, output); }
};

struct BarrierCall {
  static constexpr const char* kName = "barrier";
  BarrierOptions options;
  std::shared_ptr<Work> on(ProcessGroup& group) const { return group.barrier(options); }
  auto read_first() const { return std::tie(); }
};

struct SendCall {
  static constexpr const char* kName = "send";
  Tensors& tensors;
  int destination;
  int tag;
  std::shared_ptr<Work> on(ProcessGroup& group) const { return group.send(tensors, destination, tag); }
  auto read_first() const { return std::tie(tensors); }
};

struct RecvCall {
  static constexpr const char* kName = "recv";
  Tensors& tensors;
  int source;
  int tag;
  std::shared_ptr<Work> on(ProcessGroup& group) const { return group.recv(tensors, source, tag); }
  auto read_first() const { return std::tie(tensors); }
};

struct RecvAnySourceCall {
  static constexpr const char* kName = "recv_anysource";
  Tensors& tensors;
  int tag;
  std::shared_ptr<Work> on(ProcessGroup& group) const { return group.recv_anysource(tensors, tag); }
  auto read_first() const { return std::tie(tensors); }
};

using GroupCall = std::variant<BroadcastCall, AllReduceCall, ReduceCall, AllGatherCall, AllGatherIntoTensorCall,
                               GatherCall, ScatterCall, ReduceScatterCall, ReduceScatterTensorCall, AllToAllCall,
                               AllToAllSingleCall, BarrierCall, SendCall, RecvCall, RecvAnySourceCall>;

// ProcessGroup's method: "all_reduce".
const char* name_of(const GroupCall& call);

// Null for a message.
CollectiveOptions* options_of(GroupCall& call);

// Calls `visit` for each tensor, those that are read first.
void for_each_tensor(const GroupCall& call, const std::function<void(const at::Tensor&)>& visit);

// The call, made on `group`; returns and throws what its method does.
std::shared_ptr<Work> call_on(ProcessGroup& group, const GroupCall& call);

}  // namespace gradwire
