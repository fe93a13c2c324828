// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/hooks/between_hosts_hook.h"

#include <utility>
#include <vector>

#include "gradwire/base/strings.h"
#include "gradwire/hooks/wrapper_internal.h"
#include "gradwire/process_group/changing_ranks.h"
#include "gradwire/process_group/dtype_internal.h"
#include "gradwire/process_group/hybrid/hosts_of.h"
#include "gradwire/process_group/lane_scope.h"

namespace gradwire {
namespace {

// The options of a call within the host. On a lane the call counts as one of the bucket's stages.
template <class Options>
Options options_of_first_rank() {
  Options options;
  options.async = false;
  options.root = 0;
  if (LaneScope* const lane = LaneScope::current()) options.tag = lane->next_tag();
  return options;
}

class BetweenHostsHook final : public internal::HookWrapper {
 public:
  // `group`: instead of the bucket's; null: the bucket's.
  BetweenHostsHook(HookTraits traits, const std::shared_ptr<CommHook>& inner, std::shared_ptr<ProcessGroup> group)
      : HookWrapper(std::move(traits), inner), group_(std::move(group)) {}

  bool memory_lies_with_first_ranks() const override { return true; }

  Future run(GradBucket& bucket) override {
    if (group_ == nullptr) return run_over_own(bucket);
    const LaneScope* const lane = LaneScope::current();
    ProcessGroup& group = lane == nullptr ? *group_ : lane->route(*group_);
    if (&group == &bucket.group()) return run_over_own(bucket);
    const std::shared_ptr<const BucketLayout> layout(std::shared_ptr<void>(), &bucket.layout());
    const auto over_group =
        std::make_shared<GradBucket>(layout, bucket.buffer(), group, bucket.divisor(group), bucket.is_last(),
                                     bucket.iteration(), bucket.joined(), bucket.absent());
    Future future = run_over_own(*over_group);
    // The inner hook may use its bucket until then.
    if (!future->completed()) future->addCallback([over_group](c10::ivalue::Future&) {});
    return future;
  }

 private:
  // Over the bucket's group.
  Future run_over_own(GradBucket& bucket) {
    if (auto* const changing = dynamic_cast<ChangingRanks*>(&bucket.group())) {
      // Where each host has one rank, the ranks that follow get what the inner hook sends, which is less.
      if (!changing->has_hosts()) return inner().run(bucket);
      average_over_changing(bucket, *changing);
    } else if (const auto hosts = hosts_of(bucket.group())) {
      average_over(bucket, *hosts);
    } else {
      return inner().run(bucket);
    }
    return completed_future(bucket.buffer());
  }

  // A rank that follows the ranks of the group gets the result. It has no memory of the inner hook, as other ranks that
  // are not the first of their host.
  void average_over_changing(GradBucket& bucket, ChangingRanks& group) {
    Tensors tensors{bucket.buffer()};
    AllReduceOptions options;
    options.async = false;
    GroupCall call(AllReduceCall{tensors, options});
    group
        .call_over_hosts(call,
                         [&] {
                           if (const auto hosts = hosts_of(bucket.group())) average_over(bucket, *hosts);
                           return completed_work(tensors);
                         })
        ->wait();
  }

  void average_over(GradBucket& bucket, const HybridGroup& hosts) {
    ProcessGroup& local = *hosts.local();
    at::Tensor buffer = bucket.buffer();
    const auto to_first = options_of_first_rank<ReduceOptions>();
    const auto from_first = options_of_first_rank<BroadcastOptions>();
    const double ranks_a_host = static_cast<double>(hosts.size()) / hosts.hosts();
    const bool divides_first = internal::divides_before_sum(buffer.scalar_type());
    if (divides_first && ranks_a_host != 1) buffer.div_(ranks_a_host);
    within_host(hosts, [&] { local.reduce({buffer}, to_first)->wait(); });
    if (hosts.is_leader()) {
      if (!divides_first && ranks_a_host != 1) buffer.div_(ranks_a_host);
      hosts.run_on_cross([&] { average_between(bucket, hosts); });
    }
    within_host(hosts, [&] { local.broadcast({buffer}, from_first)->wait(); });
  }

  // The groups within and between hosts are parts of the bucket's group, which is the lane's own duplicate already. So
  // the calls pause the lane, which would refuse these groups.
  template <class Call>
  static void within_host(const HybridGroup& hosts, const Call& call) {
    const LaneScope::Pause as_the_group;
    hosts.run_on_local(call);
  }

  // The input of the inner hook is the mean of each host, and its result is the mean of these means. So a hook that
  // keeps the difference sees both on one scale.
  void average_between(GradBucket& bucket, const HybridGroup& hosts) {
    at::Tensor buffer = bucket.buffer();
    const at::Tensor result = run_between(bucket, hosts.cross());
    if (!result.is_same(buffer)) buffer.copy_(result);
    // In a Join the divisor may be smaller than the number of ranks.
    if (bucket.divisor() != hosts.size()) buffer.mul_(static_cast<double>(hosts.size()) / bucket.divisor());
  }

  at::Tensor run_between(const GradBucket& bucket, const std::shared_ptr<ProcessGroup>& cross) {
    const std::vector<LaneScope::Route> routes{{cross, cross}};
    const LaneScope between(routes,
                            {.iteration = bucket.iteration(), .bucket = static_cast<std::uint16_t>(bucket.index())});
    // No ownership: the bucket, with its layout, is valid until the hook's future completes.
    const std::shared_ptr<const BucketLayout> layout(std::shared_ptr<void>(), &bucket.layout());
    GradBucket means(layout, bucket.buffer(), *cross, cross->size(), bucket.is_last(), bucket.iteration(),
                     bucket.joined(), bucket.absent());
    return result_of(inner(), means);
  }

  const std::shared_ptr<ProcessGroup> group_;
};

}  // namespace

// The name is the inner hook's name, because messages are about that hook.
std::shared_ptr<CommHook> make_between_hosts_hook(std::shared_ptr<CommHook> inner) {
  HookTraits traits = internal::wrapped("make_between_hosts_hook()", inner).traits();
  traits.identity = concat("between_hosts(", inner->identity(), ")");
  return std::make_shared<BetweenHostsHook>(std::move(traits), inner, nullptr);
}

std::shared_ptr<CommHook> internal::make_between_hosts_hook_of_registry(std::shared_ptr<CommHook> inner,
                                                                        std::shared_ptr<ProcessGroup> group) {
  HookTraits traits = internal::wrapped("make_hook()", inner).traits();
  traits.identity = inner->identity();
  if (group != nullptr) traits.groups = {group};
  return std::make_shared<BetweenHostsHook>(std::move(traits), inner, std::move(group));
}

}  // namespace gradwire
