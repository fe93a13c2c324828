// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// What a HybridGroup makes of itself: duplicates, parts, and memory that its ranks share.
#include <ATen/Functions.h>

#include <algorithm>
#include <utility>

#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "gradwire/process_group/hybrid/hybrid_call_internal.h"
#include "gradwire/process_group/hybrid/hybrid_state_internal.h"
#include "gradwire/process_group/outer_ranks_internal.h"

namespace gradwire {

// One outcome for all: what one host has and another has not would leave ranks with different errors.
void HybridGroup::require_granted(Call& call, const char* operation, const Refusal& refusal) const {
  // Over the group of all ranks, so that none is ahead in a new group when another one learns here that a rank has
  // died.
  const at::Tensor granted = at::tensor({std::int64_t{refusal.error == nullptr}});
  call.everyone().all_reduce({granted}, call.reducing<AllReduceOptions>(ReduceOp::min()))->wait();
  if (granted.item<std::int64_t>() != 0) return;
  call.refuse_to_all();
  if (refusal.error) std::rethrow_exception(refusal.error);
  throw ResourceError(concat(describe(operation), ": another rank was refused what the call needs there"));
}

std::shared_ptr<ProcessGroup> HybridGroup::do_dup() {
  Groups made;
  in_turn("dup", [&](Call& call) {
    Refusal refusal;
    made.local = refusal.unless_refused([&] { return call.local().dup(); });
    if (call.has_cross()) made.cross = refusal.unless_refused([&] { return call.cross().dup(); });
    made.everyone = refusal.unless_refused([&] { return call.everyone().dup(); });
    require_granted(call, "dup", refusal);
  });
  // Whether a group has dup() is the same on all ranks.
  if (made.everyone == nullptr || made.local == nullptr || (made.cross == nullptr) != (groups_.cross == nullptr))
    return nullptr;
  std::shared_ptr<HybridGroup> group(new HybridGroup(std::move(made), host_of_));
  group->set_timeout(timeout());
  group->set_group_desc(group_desc());
  state_->duplicates.add(group);
  return group;
}

struct HybridGroup::Part {
  std::vector<int> members;  // of the new group of this rank, in its order; in the numbers of this group
  std::vector<int> hosts;    // theirs
};

HybridGroup::Part HybridGroup::part_of(Call& call, int color, int key) const {
  const at::Tensor mine = at::tensor({std::int64_t{color}, std::int64_t{key}});
  const at::Tensor of_all = at::empty({size(), 2}, at::kLong);
  gather_rows(call, of_all, mine);
  const auto* const asked = of_all.const_data_ptr<std::int64_t>();
  Part part;
  for (int each = 0; each < size(); ++each) {
    if (asked[2 * each] == color) part.members.push_back(each);
  }
  std::stable_sort(part.members.begin(), part.members.end(),
                   [asked](int a, int b) { return asked[2 * a + 1] < asked[2 * b + 1]; });
  for (const int member : part.members) part.hosts.push_back(host_of(member));
  return part;
}

std::shared_ptr<ProcessGroup> HybridGroup::do_split(int color, int key, const std::optional<std::string>& desc) {
  std::shared_ptr<HybridGroup> group;
  in_turn("split", [&](Call& call) {
    Refusal refusal;
    // First: when it fails, the ranks of other hosts hear of that over the group that is split.
    auto local = refusal.unless_refused([&] { return call.local().split(color, key, desc); });
    const Part part = part_of(call, color, key);
    auto everyone = refusal.unless_refused([&] { return call.everyone().split(color, key, desc); });
    require_granted(call, "split", refusal);
    try {
      if (everyone != nullptr)
        group = refusal.unless_refused([&] { return make(std::move(everyone), std::move(local), part.hosts); });
    } catch (...) {
      std::rethrow_exception(internal::in_outer_ranks(std::current_exception(), part.members));
    }
    require_granted(call, "split", refusal);
  });
  if (group == nullptr) return nullptr;
  group->set_group_desc(desc.value_or(group_desc()));
  return group;
}

at::Tensor HybridGroup::do_allocate(std::int64_t numel, at::ScalarType dtype) {
  at::Tensor memory;
  in_turn("allocate", [&](Call& call) {
    Refusal refusal;
    memory = refusal.unless_refused([&] { return call.local().allocate(numel, dtype); });
    // The hosts meet by a step of gather(), the only other call that goes on in the group of all ranks after it.
    if (is_leader()) call.gather_nothing(call.cross());
    require_granted(call, "allocate", refusal);
  });
  return memory;
}

}  // namespace gradwire
