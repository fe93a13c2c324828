// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/hooks/between_hosts_hook.h"

#include <utility>
#include <vector>

#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "gradwire/process_group/hybrid/hybrid_group.h"
#include "gradwire/process_group/lane_scope.h"

namespace gradwire {
namespace {

// Of a call within the host. On a lane it counts as one of the bucket's stages.
template <class Options>
Options options_of_first_rank() {
  Options options;
  options.async = false;
  options.root = 0;
  if (LaneScope* const lane = LaneScope::current()) options.tag = lane->next_tag();
  return options;
}

class BetweenHostsHook final : public CommHook {
 public:
  explicit BetweenHostsHook(std::shared_ptr<CommHook> inner) : CommHook(inner->traits()), inner_(std::move(inner)) {}

  Future run(GradBucket& bucket) override {
    const auto* const hosts = dynamic_cast<const HybridGroup*>(&bucket.group());
    if (hosts == nullptr) return inner_->run(bucket);
    ProcessGroup& local = *hosts->local();
    const at::Tensor buffer = bucket.buffer();
    const auto to_first = options_of_first_rank<ReduceOptions>();
    const auto from_first = options_of_first_rank<BroadcastOptions>();
    within_host([&] { local.reduce({buffer}, to_first)->wait(); });
    if (hosts->is_leader()) average_between(bucket, *hosts);
    within_host([&] { local.broadcast({buffer}, from_first)->wait(); });
    return completed_future(buffer);
  }

  HookState state_dict() const override { return inner_->state_dict(); }
  void load_state_dict(const HookState& state) override { inner_->load_state_dict(state); }

 private:
  // The groups within and between hosts belong to the bucket's group, which the lane knows; they are not led anywhere.
  template <class Call>
  static void within_host(const Call& call) {
    const LaneScope::Pause as_the_group;
    call();
  }

  // What goes in are means of hosts and what comes out is their mean, so that a hook which remembers the difference
  // sees both on one scale.
  void average_between(GradBucket& bucket, const HybridGroup& hosts) {
    at::Tensor buffer = bucket.buffer();
    const double ranks_a_host = static_cast<double>(hosts.size()) / hosts.hosts();
    if (ranks_a_host != 1) buffer.div_(ranks_a_host);
    const at::Tensor result = run_between(bucket, hosts.cross());
    if (!result.is_same(buffer)) buffer.copy_(result);
    // Where ranks have joined, fewer count.
    if (bucket.divisor() != hosts.size()) buffer.mul_(static_cast<double>(hosts.size()) / bucket.divisor());
  }

  at::Tensor run_between(const GradBucket& bucket, const std::shared_ptr<ProcessGroup>& cross) {
    const std::vector<LaneScope::Route> routes{{cross, cross}};
    const LaneScope between(routes,
                            {.iteration = bucket.iteration(), .bucket = static_cast<std::uint16_t>(bucket.index())});
    // The bucket is there until the hook's future is.
    const std::shared_ptr<const BucketLayout> layout(std::shared_ptr<void>(), &bucket.layout());
    GradBucket means(layout, bucket.buffer(), *cross, cross->size(), bucket.is_last(), bucket.iteration(),
                     bucket.joined());
    const Future future = inner_->run(means);
    if (!future) throw InvalidArgument(concat("The hook '", inner_->traits().name, "' returned a null future."));
    future->waitAndThrow();
    return tensor_of(*future);
  }

  const std::shared_ptr<CommHook> inner_;
};

}  // namespace

std::shared_ptr<CommHook> make_between_hosts_hook(std::shared_ptr<CommHook> inner) {
  if (inner == nullptr) throw InvalidArgument("make_between_hosts_hook() needs a hook to wrap; got null.");
  return std::make_shared<BetweenHostsHook>(std::move(inner));
}

}  // namespace gradwire
