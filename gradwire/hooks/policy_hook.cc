// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/hooks/policy_hook.h"

#include <algorithm>
#include <utility>

#include "gradwire/hooks/default_hooks.h"
#include "gradwire/hooks/iteration_internal.h"
#include "gradwire/hooks/wrapper_internal.h"

namespace gradwire {
namespace {

constexpr const char* kPolicyIteration = "policy/iteration";

class PolicyHook final : public internal::HookWrapper {
 public:
  PolicyHook(const std::shared_ptr<CommHook>& inner, const PolicyOptions& options, std::shared_ptr<ProcessGroup> group)
      : HookWrapper(traits_around(inner, options, group), inner), options_(options), group_(std::move(group)) {}

  Future run(GradBucket& bucket) override {
    if (iteration_.of(bucket) < options_.warm_up || bucket.buffer().nbytes() < options_.min_bytes) {
      return allreduce_hook(group_, bucket);
    }
    return inner().run(bucket);
  }

  HookState state_dict() const override {
    HookState state = HookWrapper::state_dict();
    if (options_.warm_up > 0) state.emplace(kPolicyIteration, iteration_.next());
    return state;
  }

  void load_state_dict(const HookState& state) override {
    HookState of_inner = state;
    const auto found = of_inner.extract(kPolicyIteration);
    const bool valid = found.empty() ? options_.warm_up == 0 : found.mapped().isInt() && found.mapped().toInt() >= 0;
    if (!valid) {
      throw InvalidArgument(concat("The hook '", traits().name, "': the state to load has no valid '", kPolicyIteration,
                                   "', which a hook with a warm-up saves; it was saved by another hook."));
    }
    HookWrapper::load_state_dict(of_inner);
    if (!found.empty()) iteration_.set_next(found.mapped().toInt());
  }

  void keep_state() override {
    HookWrapper::keep_state();
    kept_iteration_ = iteration_.next();
  }
  void revert_state() override {
    HookWrapper::revert_state();
    iteration_.set_next(kept_iteration_);
  }

  // The inner hook counts only the iterations in which it runs.
  std::int64_t warm_up() const override { return options_.warm_up + HookWrapper::warm_up(); }
  void end_warm_up() override {
    HookWrapper::end_warm_up();
    iteration_.set_next(std::max<std::int64_t>(iteration_.next(), options_.warm_up));
  }

 private:
  static HookTraits traits_around(const std::shared_ptr<CommHook>& inner, const PolicyOptions& options,
                                  const std::shared_ptr<ProcessGroup>& group) {
    HookTraits traits = internal::traits_around("policy", inner, /*keeps_single_collective=*/true,
                                                concat("warm_up=", options.warm_up, ",min=", options.min_bytes));
    const bool is_named = std::find(traits.groups.begin(), traits.groups.end(), group) != traits.groups.end();
    if (group != nullptr && !is_named) traits.groups.push_back(group);
    return traits;
  }

  const PolicyOptions options_;
  const std::shared_ptr<ProcessGroup> group_;
  internal::IterationCount iteration_;
  std::int64_t kept_iteration_ = 0;
};

}  // namespace

std::shared_ptr<CommHook> make_policy_hook(std::shared_ptr<CommHook> inner, const PolicyOptions& options,
                                           std::shared_ptr<ProcessGroup> group) {
  return std::make_shared<PolicyHook>(inner, options, std::move(group));
}

}  // namespace gradwire
