// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/elastic/mirror_group_internal.h"

#include <c10/core/GradMode.h>

#include <cmath>
#include <cstddef>
#include <variant>

#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "gradwire/elastic/tape_internal.h"

namespace gradwire::internal {
namespace {

// `tensor` becomes the reduction of `size` tensors with its values.
void reduce(at::Tensor tensor, ReduceOp op, int size) {
  if (tensor.scalar_type() == at::kBool) {
    if (op.kind == ReduceOp::Kind::bxor && size % 2 == 0) tensor.zero_();
    return;
  }
  switch (op.kind) {
    case ReduceOp::Kind::sum:
      tensor.mul_(size);
      return;
    case ReduceOp::Kind::premul_sum:
      tensor.mul_(op.factor * size);
      return;
    case ReduceOp::Kind::product:
      tensor.pow_(size);
      return;
    case ReduceOp::Kind::bxor:
      if (size % 2 == 0) tensor.zero_();
      return;
    case ReduceOp::Kind::avg:
    case ReduceOp::Kind::min:
    case ReduceOp::Kind::max:
    case ReduceOp::Kind::band:
    case ReduceOp::Kind::bor:
      return;
  }
}

struct Answer {
  int rank;
  int size;

  void operator()(BroadcastCall&) const {}
  void operator()(BarrierCall&) const {}
  void operator()(AllReduceCall& call) const {
    for (const at::Tensor& tensor : call.tensors) reduce(tensor, call.options.op, size);
  }
  void operator()(ReduceCall& call) const {
    if (call.options.root != rank) return;
    for (const at::Tensor& tensor : call.tensors) reduce(tensor, call.options.op, size);
  }
  void operator()(AllGatherCall& call) const { gather(call.outputs, call.inputs); }
  void operator()(GatherCall& call) const { gather(call.outputs, call.inputs); }
  void operator()(AllGatherIntoTensorCall& call) const {
    call.output.view({size, -1}).copy_(call.input.reshape({1, -1}).expand({size, -1}));
  }
  void operator()(ScatterCall& call) const {
    for (std::size_t i = 0; i < call.inputs.size(); ++i) call.outputs[i].copy_(part(call.inputs[i]));
  }
  void operator()(ReduceScatterCall& call) const {
    for (std::size_t i = 0; i < call.inputs.size(); ++i) {
      call.outputs[i].copy_(part(call.inputs[i]));
      reduce(call.outputs[i], call.options.op, size);
    }
  }
  void operator()(ReduceScatterTensorCall& call) const {
    call.output.view({-1}).copy_(call.input.reshape({size, -1})[rank]);
    reduce(call.output, call.options.op, size);
  }
  void operator()(AllToAllCall& call) const {
    for (at::Tensor& output : call.outputs) output.copy_(part(call.inputs).view_as(output));
  }
  void operator()(AllToAllSingleCall& call) const {
    // Splits may differ between ranks; what arrives is of no account, but is not left undefined.
    call.output.zero_();
  }
  template <class Message>
  void operator()(Message&) const {
    throw UnsupportedError(concat("a member that follows an elastic job makes no ", Message::kName,
                                  "(): messages between two ranks are not on the tape of a step"));
  }

 private:
  const at::Tensor& part(const Tensors& tensors) const { return tensors[static_cast<std::size_t>(rank)]; }
  static void gather(std::vector<Tensors>& outputs, const Tensors& inputs) {
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      for (at::Tensor& output : outputs[i]) output.copy_(inputs[i].view_as(output));
    }
  }
};

}  // namespace

std::shared_ptr<Work> MirrorGroup::do_call(GroupCall& call) {
  const c10::NoGradGuard no_grad;
  std::visit(Answer{rank(), size()}, call);
  return completed_work(written_by(call));
}

}  // namespace gradwire::internal
