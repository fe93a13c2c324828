// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/hooks/policy_hook.h"

#include <utility>

#include "gradwire/hooks/default_hooks.h"
#include "gradwire/hooks/wrapper_internal.h"

namespace gradwire {
namespace {

class PolicyHook final : public internal::HookWrapper {
 public:
  PolicyHook(std::shared_ptr<CommHook> inner, const PolicyOptions& options)
      : HookWrapper("policy", std::move(inner), /*keeps_single_collective=*/true), options_(options) {}

  Future run(GradBucket& bucket) override {
    if (bucket.iteration() < options_.warm_up || bucket.buffer().nbytes() < options_.min_bytes) {
      return allreduce_hook(nullptr, bucket);
    }
    return inner().run(bucket);
  }

 private:
  const PolicyOptions options_;
};

}  // namespace

std::shared_ptr<CommHook> make_policy_hook(std::shared_ptr<CommHook> inner, const PolicyOptions& options) {
  return std::make_shared<PolicyHook>(std::move(inner), options);
}

}  // namespace gradwire
