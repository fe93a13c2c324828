// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/ddp/backward_watch_internal.h"

#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <cstddef>
#include <utility>

namespace gradwire::internal {
namespace {

using torch::autograd::GraphTask;

// The pass that runs on this thread, or null. libtorch's interface gives the address of one member of the pass only, so
// the pass is found by the offset of that member.
const GraphTask* current_task() {
  const auto* member = torch::autograd::get_current_graph_task_exec_info();
  if (member == nullptr) return nullptr;
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Winvalid-offsetof"
  constexpr std::size_t kDistance = offsetof(GraphTask, exec_info_);
#pragma GCC diagnostic pop
  const auto* task = reinterpret_cast<const GraphTask*>(reinterpret_cast<const char*>(member) - kDistance);
  // Null when the class of the running libtorch has another layout than the header says.
  return task->id_ == static_cast<std::uint64_t>(torch::autograd::get_current_graph_task_id()) ? task : nullptr;
}

using AtEnd = std::function<void(c10::ivalue::Future&)>;

// What call_at_end() on this thread calls when the pass has ended already; null outside of that function.
thread_local const AtEnd* when_ended = nullptr;

// Calls `later` when the running pass ends. Calls `now` instead, within this function, when the pass has ended already.
void call_at_end(AtEnd later, const AtEnd& now) {
  const GraphTask* task = current_task();
  if (task == nullptr || !task->future_result_) return;
  struct Scope {
    explicit Scope(const AtEnd& call) { when_ended = &call; }
    ~Scope() { when_ended = nullptr; }
  } const scope(now);
  // libtorch runs the callback within addCallback() when the pass has ended, also when it ends at this moment.
  task->future_result_->addCallback(
      [later = std::move(later)](c10::ivalue::Future& end) { when_ended != nullptr ? (*when_ended)(end) : later(end); },
      /*uses_future=*/false);
}

}  // namespace

int current_backward_pass() { return torch::autograd::get_current_graph_task_id(); }

std::exception_ptr watch_backward_pass(std::function<void(std::exception_ptr)> on_error) {
  std::exception_ptr ended_with;
  call_at_end(
      [on_error = std::move(on_error)](c10::ivalue::Future& end) {
        if (end.hasError()) on_error(end.exception_ptr());
      },
      [&ended_with](c10::ivalue::Future& end) {
        if (end.hasError()) ended_with = end.exception_ptr();
      });
  return ended_with;
}

void call_after_backward_pass(std::function<void()> on_end) {
  call_at_end([on_end = std::move(on_end)](c10::ivalue::Future&) { on_end(); }, [](c10::ivalue::Future&) {});
}

bool current_pass_reaches(const torch::autograd::Node* accumulator) {
  auto* node = const_cast<torch::autograd::Node*>(accumulator);  // the key type of libtorch's sets
  if (node == nullptr) return false;
  const auto* nodes = torch::autograd::get_current_graph_task_nodes_in_graph();
  if (nodes == nullptr || !nodes->contains(node)) return false;
  const auto* chosen = torch::autograd::get_current_graph_task_exec_info();
  if (chosen == nullptr || chosen->empty()) return true;
  const auto found = chosen->find(node);
  return found != chosen->end() && found->second.needed_;
}

bool current_pass_is_for_chosen_inputs() {
  const auto* chosen = torch::autograd::get_current_graph_task_exec_info();
  return chosen != nullptr && !chosen->empty();
}

bool current_pass_leaves_out(std::span<const at::Tensor> parameters) {
  if (!current_pass_is_for_chosen_inputs()) return false;
  const auto* chosen = torch::autograd::get_current_graph_task_exec_info();
  return std::none_of(parameters.begin(), parameters.end(), [chosen](const at::Tensor& parameter) {
    const auto accumulator = torch::autograd::impl::try_get_grad_accumulator(parameter);
    const auto found = chosen->find(accumulator.get());
    return found != chosen->end() && found->second.should_execute();
  });
}

}  // namespace gradwire::internal
