// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include <memory>
#include <string>
#include <utility>

#include "gradwire/base/error.h"
#include "gradwire/base/log.h"
#include "gradwire/base/strings.h"
#include "gradwire/functional/rule_internal.h"

namespace gradwire::functional {
namespace {

// Every message goes behind one byte that says whether its sender needs a gradient.
at::Tensor flag(bool needs_gradient, const at::Tensor& beside) {
  return at::full({1}, needs_gradient ? 1 : 0, at::TensorOptions(at::kByte).device(beside.device()));
}

// Logs the error of a message for which nobody waits, or only a backward pass that may never come.
void log_failure(Work& message, const std::string& what) {
  if (!log::enabled(log::Level::warn)) return;
  try {
    message.future()->addCallback(
        [what](c10::ivalue::Future& future) {
          if (future.hasError()) log::warn(concat(what, ": ", describe(future.exception_ptr())));
        },
        /*uses_future=*/false);
  } catch (const UnsupportedError&) {  // a user's class without a future
  }
}

std::shared_ptr<Work> send_alone(const char* of, ProcessGroup& group, const at::Tensor& tensor, int peer, int tag) {
  std::shared_ptr<Work> message = group.send({tensor}, peer, tag);
  log_failure(*message, concat(of, " on rank ", group.rank(), " to rank ", peer, ", tag ", tag));
  return message;
}

class PointToPoint : public Rule {
 public:
  PointToPoint(const char* operation, int peer, int tag, Group group)
      : Rule(operation, std::move(group)), peer_(peer), tag_(tag) {}

 protected:
  std::shared_ptr<Work> post(const at::Tensor& tensor) const {
    // The work keeps the copy alive until the receiver has it.
    return send_alone(operation(), group(), tensor.detach().clone(at::MemoryFormat::Contiguous), peer_, tag_);
  }
  at::Tensor fetch(const at::Tensor& like) const {
    at::Tensor tensor = at::empty_like(like, {}, at::MemoryFormat::Contiguous);
    group().recv({tensor}, peer_, tag_)->wait();
    return tensor;
  }
  void require_first_order() const {
    if (!c10::GradMode::is_enabled()) return;
    throw UnsupportedError(
        concat("backward of ", operation(), " on rank ", group().rank(),
               ": send and recv can be differentiated only once; use all_to_all or gather with create_graph"));
  }

 private:
  int peer_, tag_;
};

class Send : public PointToPoint {
 public:
  Send(int destination, int tag, Group group, std::shared_ptr<Work> flag)
      : PointToPoint("send", destination, tag, std::move(group)), flag_(std::move(flag)) {}
  Tensors forward(const Tensors& inputs) const override {
    message_ = post(inputs[0]);
    return {at::zeros({}, inputs[0].options())};
  }
  // Only what fetch() reads of it: the program may change the tensor in place.
  Tensors save(const Tensors& inputs, const Tensors& /*outputs*/) const override {
    return {at::empty({}, inputs[0].options().requires_grad(false)).expand(inputs[0].sizes())};
  }
  Tensors backward(const Tensors& saved, const Tensors& /*gradients*/) const override {
    require_first_order();
    // The receiver has both before it sends a gradient, so this waits no longer than fetch(); the error of a message
    // that was not sent is told.
    flag_->wait();
    message_->wait();
    return {fetch(saved[0])};
  }

 private:
  const std::shared_ptr<Work> flag_;
  mutable std::shared_ptr<Work> message_;  // that forward() sent
};

class Recv : public PointToPoint {
 public:
  Recv(int source, int tag, Group group) : PointToPoint("recv", source, tag, std::move(group)) {}
  Tensors forward(const Tensors& inputs) const override { return {fetch(inputs[0])}; }
  Tensors backward(const Tensors& /*saved*/, const Tensors& gradients) const override {
    require_first_order();
    post(gradients[0]);
    return {at::Tensor()};
  }
};

void require_other_rank(const char* operation, const Group& group, const at::Tensor& tensor, int peer) {
  require_arguments(operation, group, {tensor});
  require_rank(operation, *group, "rank", peer);
  if (peer == group->rank()) {
    throw InvalidArgument(concat(operation, " on rank ", peer, ": a rank sends nothing to itself"));
  }
}

}  // namespace

at::Tensor send(const at::Tensor& tensor, int destination, const Group& group, int tag) {
  require_other_rank("send", group, tensor, destination);
  const bool needed = wants_gradient({tensor});
  auto sent = send_alone("send", *group, flag(needed, tensor), destination, tag);
  return run_agreed(c10::make_intrusive<Send>(destination, tag, group, std::move(sent)), {tensor}, needed).front();
}

at::Tensor recv(const at::Tensor& like, int source, const Group& group, int tag) {
  require_other_rank("recv", group, like, source);
  const at::Tensor needed = flag(false, like);
  group->recv({needed}, source, tag)->wait();
  const bool needs_gradient = needed.item<std::uint8_t>() != 0;
  if (needs_gradient && !c10::GradMode::is_enabled()) {
    // The message is behind its flag, and the next receive must not find it.
    group->recv({at::empty_like(like, {}, at::MemoryFormat::Contiguous)}, source, tag)->wait();
    throw InvalidArgument(
        concat("recv on rank ", group->rank(), ": rank ", source,
               " needs a gradient of what it sends, but this rank is in no-grad mode and could not send it"));
  }
  return run_agreed(c10::make_intrusive<Recv>(source, tag, group), {like.detach()}, needs_gradient).front();
}

}  // namespace gradwire::functional
