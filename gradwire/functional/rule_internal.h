// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// What one differentiable collective does forward and backward, and the one autograd function that runs it.
#pragma once

#include <c10/util/intrusive_ptr.h>
#include <torch/custom_class.h>

#include <string>

#include "gradwire/base/backward_errors.h"
#include "gradwire/functional/functional.h"

namespace gradwire::functional {

class Rule : public torch::CustomClassHolder {
 public:
  // `operation`: for messages.
  Rule(const char* operation, Group group) : operation_(operation), group_(std::move(group)) {}

  // Runs the collective, outside of autograd.
  virtual Tensors forward(const Tensors& inputs) const = 0;
  // What backward() will be given.
  virtual Tensors save(const Tensors& /*inputs*/, const Tensors& /*outputs*/) const { return {}; }
  // The gradients of the inputs, made of differentiable functions. `gradients` are those of the outputs, all defined.
  virtual Tensors backward(const Tensors& saved, const Tensors& gradients) const = 0;
  // Throws InvalidArgument where there is no gradient. Default: there is one.
  virtual void require_gradient() const {}

  const char* operation() const { return operation_; }
  ProcessGroup& group() const { return *group_; }
  const Group& shared_group() const { return group_; }
  TranslateError errors() const { return errors_; }

 private:
  const char* operation_;
  Group group_;
  TranslateError errors_ = backward_errors();
};

// Agrees with the other ranks whether a gradient is needed, then runs `rule`.
Tensors run_rule(c10::intrusive_ptr<Rule> rule, const Tensors& inputs);
// The same where it is known.
Tensors run_agreed(c10::intrusive_ptr<Rule> rule, const Tensors& inputs, bool needs_gradient);

bool wants_gradient(const Tensors& inputs);

// Refuses a null group, an undefined or sparse tensor and a rank out of range. `operation`: for the message.
void require_arguments(const char* operation, const Group& group, const Tensors& tensors);
void require_rank(const char* operation, const ProcessGroup& group, const char* what, int rank);
// One tensor a rank, all of one shape when `alike`, of one dtype.
void require_one_a_rank(const char* operation, const ProcessGroup& group, const Tensors& tensors, bool alike);

// `options` for a call that is waited for at once.
template <class Options>
Options synchronous() {
  Options options;
  options.async = false;
  return options;
}

}  // namespace gradwire::functional
