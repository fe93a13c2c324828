// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/hooks/post_local_sgd_hook.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <utility>

#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "gradwire/hooks/default_hooks.h"
#include "gradwire/hooks/iteration_internal.h"

namespace gradwire {
namespace {

constexpr const char* kLocalSgdIteration = "iteration";

HookTraits traits_of(const PostLocalSGDState& state) {
  if (state.start_iteration < 0) {
    throw InvalidArgument(
        concat("Post-local SGD cannot start at iteration ", state.start_iteration, "; 0 is the first one."));
  }
  if (state.subgroup == nullptr && state.post_local_gradient_allreduce) {
    throw InvalidArgument(
        "Post-local SGD needs a subgroup, e.g. of the ranks of one host (ProcessGroup::split()), or "
        "post_local_gradient_allreduce = false.");
  }
  HookTraits traits{.name = "post_local_sgd", .parallel_safe = true, .single_collective = true};
  traits.identity = concat(traits.name, ":start=", state.start_iteration,
                           ",gradient_allreduce=", state.post_local_gradient_allreduce);
  if (state.process_group != nullptr) traits.groups.push_back(state.process_group);
  if (state.subgroup != nullptr && state.post_local_gradient_allreduce) traits.groups.push_back(state.subgroup);
  return traits;
}

class PostLocalSGDHook final : public CommHook {
 public:
  explicit PostLocalSGDHook(PostLocalSGDState state) : CommHook(traits_of(state)), state_(std::move(state)) {}

  Future run(GradBucket& bucket) override {
    if (iteration_.of(bucket) < state_.start_iteration) return allreduce_hook(state_.process_group, bucket);
    at::Tensor buffer = bucket.buffer();
    if (!state_.post_local_gradient_allreduce) return completed_future(buffer);
    // bucket.divisor() counts the ranks of all subgroups.
    buffer.div_(participants(bucket));
    return tensor_future(state_.subgroup->all_reduce({buffer}));
  }

  HookState state_dict() const override { return {{kLocalSgdIteration, iteration_.next()}}; }

  void load_state_dict(const HookState& state) override {
    const auto found = state.find(kLocalSgdIteration);
    if (state.size() != 1 || found == state.end() || !found->second.isInt() || found->second.toInt() < 0) {
      throw InvalidArgument(concat("The state of the hook post_local_sgd is one number, '", kLocalSgdIteration,
                                   "'; the state to load was saved by another hook."));
    }
    iteration_.set_next(found->second.toInt());
  }

 private:
  // The number of ranks of the subgroup that count. In a Join without the ranks that have joined, an all-reduce counts
  // them.
  int participants(const GradBucket& bucket) const {
    if (bucket.divisor() == bucket.group().size()) return state_.subgroup->size();
    const at::Tensor count =
        at::full({1}, bucket.joined() ? 0 : 1, at::TensorOptions(bucket.layout().device).dtype(at::kInt));
    state_.subgroup->all_reduce({count})->wait();
    return std::max(1, count.item<int>());
  }

  const PostLocalSGDState state_;
  internal::IterationCount iteration_;
};

}  // namespace

std::shared_ptr<CommHook> make_post_local_sgd_hook(PostLocalSGDState state) {
  return std::make_shared<PostLocalSGDHook>(std::move(state));
}

}  // namespace gradwire
