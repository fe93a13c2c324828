// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "gradwire/functional/rule_internal.h"
#include "gradwire/observe/flight_recorder.h"
#include "gradwire/observe/interpreter_line_internal.h"

namespace gradwire::functional {
namespace {

constexpr const char* kRule = "rule";

// The only autograd function of this room. Beside the inputs it gets an anchor: a tensor that requires a gradient when
// any rank needs one, so that a rank whose own inputs need none has a backward step all the same.
struct Collective : torch::autograd::Function<Collective> {
  static Tensors forward(torch::autograd::AutogradContext* context, const c10::intrusive_ptr<Rule>& rule,
                         at::TensorList inputs_and_anchor) {
    const Tensors inputs(inputs_and_anchor.begin(), inputs_and_anchor.end() - 1);
    context->saved_data[kRule] = c10::IValue::make_capsule(rule);
    Tensors outputs = rule->forward(inputs);
    context->save_for_backward(rule->save(inputs, outputs));
    return outputs;
  }

  static Tensors backward(torch::autograd::AutogradContext* context, const Tensors& gradients) {
    const auto capsule = context->saved_data[kRule].toCapsule();
    const Rule& rule = static_cast<const Rule&>(*capsule);
    const observe::CallerLine caller(observe::interpreter_line());
    Tensors found =
        run_backward(rule.errors(), [&] { return rule.backward(context->get_saved_variables(), gradients); });
    found.insert(found.begin(), at::Tensor());  // of the rule itself
    found.emplace_back();                       // of the anchor
    return found;
  }
};

}  // namespace

bool wants_gradient(const Tensors& inputs) {
  return c10::GradMode::is_enabled() &&
         std::any_of(inputs.begin(), inputs.end(), [](const at::Tensor& input) { return input.requires_grad(); });
}

Tensors run_agreed(c10::intrusive_ptr<Rule> rule, const Tensors& inputs, bool needs_gradient) {
  if (needs_gradient) rule->require_gradient();
  Tensors all = inputs;
  all.push_back(at::empty({0}).requires_grad_(needs_gradient));
  return Collective::apply(std::move(rule), at::TensorList(all));
}

Tensors run_rule(c10::intrusive_ptr<Rule> rule, const Tensors& inputs) {
  bool needed = wants_gradient(inputs);
  ProcessGroup& group = rule->group();
  if (group.size() > 1) {
    const std::vector<std::int64_t> mine{needed ? 1 : 0, c10::GradMode::is_enabled() ? 0 : 1};
    const at::Tensor votes = at::tensor(mine).to(inputs.front().device());
    group.all_reduce({votes}, synchronous<AllReduceOptions>())->wait();
    const at::Tensor all = votes.cpu();
    needed = all.const_data_ptr<std::int64_t>()[0] > 0;
    const std::int64_t without = all.const_data_ptr<std::int64_t>()[1];
    if (needed && without > 0) {
      throw InvalidArgument(concat(rule->operation(), " on rank ", group.rank(), ": a rank needs a gradient, but ",
                                   without, " of ", group.size(),
                                   " ranks call it in no-grad mode and could not take part in backward"));
    }
  }
  return run_agreed(std::move(rule), inputs, needed);
}

void require_arguments(const char* operation, const Group& group, const Tensors& tensors) {
  if (group == nullptr) throw InvalidArgument(concat(operation, ": there is no group"));
  if (tensors.empty()) throw InvalidArgument(concat(operation, " on rank ", group->rank(), ": there are no tensors"));
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.defined() || tensor.layout() != at::kStrided) {
      throw InvalidArgument(concat(operation, " on rank ", group->rank(), ": a tensor is ",
                                   tensor.defined() ? "not dense" : "undefined", "; pass dense tensors"));
    }
  }
}

void require_rank(const char* operation, const ProcessGroup& group, const char* what, int rank) {
  if (rank >= 0 && rank < group.size()) return;
  throw InvalidArgument(
      concat(operation, " on rank ", group.rank(), ": ", what, " ", rank, " is not in [0, ", group.size(), ")"));
}

void require_one_a_rank(const char* operation, const ProcessGroup& group, const Tensors& tensors, bool alike) {
  if (tensors.size() != static_cast<std::size_t>(group.size())) {
    throw InvalidArgument(concat(operation, " on rank ", group.rank(), ": ", tensors.size(), " tensors for ",
                                 group.size(), " ranks; pass one a rank"));
  }
  for (const at::Tensor& tensor : tensors) {
    const bool fits =
        tensor.scalar_type() == tensors.front().scalar_type() && (!alike || tensor.sizes() == tensors.front().sizes());
    if (!fits) {
      throw InvalidArgument(
          concat(operation, " on rank ", group.rank(), ": the tensors differ in ", alike ? "shape or dtype" : "dtype"));
    }
  }
}

}  // namespace gradwire::functional
