// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// A call on a group as a value: the collective or message, and its arguments. For groups that treat all calls alike,
// such as groups that pass calls on to another group (call_group.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <tuple>
#include <variant>
#include <vector>

#include "gradwire/process_group/process_group.h"

namespace gradwire {

// One struct for each method of ProcessGroup that starts a call. kName is the method's name; the fields are its
// arguments. Tensors and lists are references to the caller's: they are valid until the call has returned its Work.
// `options` (messages have none) is a copy, and may be changed before the call is passed on. on() makes the same call
// on another group, and returns and throws what that group's method does. read_first() returns references to the fields
// that hold tensors; fields that the call reads come before fields that it writes. written() returns those that the
// call writes: those of this rank, where only some ranks get a result too.

struct BroadcastCall {
  static constexpr const char* kName = "broadcast";
  Tensors& tensors;
  BroadcastOptions options;
  std::shared_ptr<Work> on(ProcessGroup& group) const { return group.broadcast(tensors, options); }
  auto read_first() const { return std::tie(tensors); }
  auto written() const { return std::tie(tensors); }
};

struct AllReduceCall {
  static constexpr const char* kName = "all_reduce";
  Tensors& tensors;
  AllReduceOptions options;
  std::shared_ptr<Work> on(ProcessGroup& group) const { return group.all_reduce(tensors, options); }
  auto read_first() const { return std::tie(tensors); }
  auto written() const { return std::tie(tensors); }
};

struct ReduceCall {
  static constexpr const char* kName = "reduce";
  Tensors& tensors;
  ReduceOptions options;
  std::shared_ptr<Work> on(ProcessGroup& group) const { return group.reduce(tensors, options); }
  auto read_first() const { return std::tie(tensors); }
  auto written() const { return std::tie(tensors); }
};

struct AllGatherCall {
  static constexpr const char* kName = "all_gather";
  std::vector<Tensors>& outputs;
  Tensors& inputs;
  AllGatherOptions options;
  std::shared_ptr<Work> on(ProcessGroup& group) const { return group.all_gather(outputs, inputs, options); }
  auto read_first() const { return std::tie(inputs, outputs); }
  auto written() const { return std::tie(outputs); }
};

struct AllGatherIntoTensorCall {
  static constexpr const char* kName = "all_gather_into_tensor";
  at::Tensor& output;
  at::Tensor& input;
  AllGatherOptions options;
  std::shared_ptr<Work> on(ProcessGroup& group) const { return group.all_gather_into_tensor(output, input, options); }
  auto read_first() const { return std::tie(input, output); }
  auto written() const { return std::tie(output); }
};

struct GatherCall {
  static constexpr const char* kName = "gather";
  std::vector<Tensors>& outputs;
  Tensors& inputs;
  GatherOptions options;
  std::shared_ptr<Work> on(ProcessGroup& group) const { return group.gather(outputs, inputs, options); }
  auto read_first() const { return std::tie(inputs, outputs); }
  auto written() const { return std::tie(outputs); }
};

struct ScatterCall {
  static constexpr const char* kName = "scatter";
  Tensors& outputs;
  std::vector<Tensors>& inputs;
  ScatterOptions options;
  std::shared_ptr<Work> on(ProcessGroup& group) const { return group.scatter(outputs, inputs, options); }
  auto read_first() const { return std::tie(outputs, inputs); }
  auto written() const { return std::tie(outputs); }
};

struct ReduceScatterCall {
  static constexpr const char* kName = "reduce_scatter";
  Tensors& outputs;
  std::vector<Tensors>& inputs;
  ReduceScatterOptions options;
  std::shared_ptr<Work> on(ProcessGroup& group) const { return group.reduce_scatter(outputs, inputs, options); }
  auto read_first() const { return std::tie(outputs, inputs); }
  auto written() const { return std::tie(outputs); }
};

struct ReduceScatterTensorCall {
  static constexpr const char* kName = "reduce_scatter_tensor";
  at::Tensor& output;
  at::Tensor& input;
  ReduceScatterOptions options;
  std::shared_ptr<Work> on(ProcessGroup& group) const { return group.reduce_scatter_tensor(output, input, options); }
  auto read_first() const { return std::tie(input, output); }
  auto written() const { return std::tie(output); }
};

struct AllToAllCall {
  static constexpr const char* kName = "all_to_all";
  Tensors& outputs;
  Tensors& inputs;
  AllToAllOptions options;
  std::shared_ptr<Work> on(ProcessGroup& group) const { return group.all_to_all(outputs, inputs, options); }
  auto read_first() const { return std::tie(inputs, outputs); }
  auto written() const { return std::tie(outputs); }
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
  auto written() const { return std::tie(output); }
};

struct BarrierCall {
  static constexpr const char* kName = "barrier";
  BarrierOptions options;
  std::shared_ptr<Work> on(ProcessGroup& group) const { return group.barrier(options); }
  auto read_first() const { return std::tie(); }
  auto written() const { return std::tie(); }
};

struct SendCall {
  static constexpr const char* kName = "send";
  Tensors& tensors;
  int destination;
  int tag;
  std::shared_ptr<Work> on(ProcessGroup& group) const { return group.send(tensors, destination, tag); }
  auto read_first() const { return std::tie(tensors); }
  auto written() const { return std::tie(); }
};

struct RecvCall {
  static constexpr const char* kName = "recv";
  Tensors& tensors;
  int source;
  int tag;
  std::shared_ptr<Work> on(ProcessGroup& group) const { return group.recv(tensors, source, tag); }
  auto read_first() const { return std::tie(tensors); }
  auto written() const { return std::tie(tensors); }
};

struct RecvAnySourceCall {
  static constexpr const char* kName = "recv_anysource";
  Tensors& tensors;
  int tag;
  std::shared_ptr<Work> on(ProcessGroup& group) const { return group.recv_anysource(tensors, tag); }
  auto read_first() const { return std::tie(tensors); }
  auto written() const { return std::tie(tensors); }
};

namespace internal {

// Calls `visit` for a tensor, or for each tensor of a list or of a list of lists, in order.
template <class Visit>
void visit_tensors(const at::Tensor& tensor, Visit& visit) {
  visit(tensor);
}
template <class T, class Visit>
void visit_tensors(const std::vector<T>& list, Visit& visit) {
  for (const T& element : list) visit_tensors(element, visit);
}

}  // namespace internal

using GroupCall = std::variant<BroadcastCall, AllReduceCall, ReduceCall, AllGatherCall, AllGatherIntoTensorCall,
                               GatherCall, ScatterCall, ReduceScatterCall, ReduceScatterTensorCall, AllToAllCall,
                               AllToAllSingleCall, BarrierCall, SendCall, RecvCall, RecvAnySourceCall>;

// Returns the name of the method ("all_reduce"). The string is static.
const char* name_of(const GroupCall& call);

// Returns the options inside `call`, which the caller may change; null for a message.
CollectiveOptions* options_of(GroupCall& call);

// Calls `visit(const at::Tensor&)` for each tensor of the call: tensors that the call reads come before tensors that it
// writes.
template <class Visit>
void for_each_tensor(const GroupCall& call, Visit&& visit) {
  const auto visit_lists = [&](const auto&... lists) { (internal::visit_tensors(lists, visit), ...); };
  std::visit([&](const auto& one) { std::apply(visit_lists, one.read_first()); }, call);
}

// Returns the tensors that the call writes.
Tensors written_by(const GroupCall& call);

// Makes the call on `group`, with `timeout` unless the call has one of its own: pass the timeout() of the group that
// was called. A message takes its timeout from `group`, whose timeout() this function sets then. Returns and throws
// what the group's method does.
std::shared_ptr<Work> call_on(ProcessGroup& group, GroupCall& call, Milliseconds timeout);

}  // namespace gradwire
