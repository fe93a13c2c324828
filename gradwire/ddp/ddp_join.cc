// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The part of DistributedDataParallel that runs in a Join.
#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "gradwire/ddp/ddp_core_internal.h"
#include "gradwire/process_group/changing_ranks.h"

namespace gradwire {

// The hook of a rank that has joined. It makes the collectives of a forward and a backward pass in their order: first
// the exchange of the kind of forward, then the order of the buckets (when they are rebuilt), the buffers, the buckets,
// filled with zeros, through the hook, the delayed gradients, the map of used parameters, and the gradients of those
// that no rank used.
class DdpCore::Shadow final : public JoinHook {
 public:
  explicit Shadow(Parts& parts) : parts_(parts) {}

  bool is_unfinished(bool begun) const override {
    const std::shared_ptr<internal::Reducer> reducer = parts_.reducer_if_any();
    return reducer != nullptr && (!begun || parts_.begun_in_join == reducer->iterations());
  }

  // The other ranks wait for this rank's gradients in the groups of the Reducer.
  bool abandon_hook(bool begun, const std::string& what) noexcept override {
    const std::shared_ptr<internal::Reducer> reducer = parts_.reducer_if_any();
    if (reducer == nullptr) return false;
    if (parts_.has_disagreed) return true;  // so have the other ranks
    reducer->give_up(concat("rank ", parts_.group->rank(), " left a Join before ",
                            begun ? "the backward pass of its forward had ended" : "its forward", ": ", what));
    return true;
  }

  void main_hook(const JoinRound& round) override {
    const Parts::Forward forward = parts_.agree(nullptr, round);
    parts_.begin_forward(forward, &round);
    parts_.buffers_due = forward.buffers_due;
    if (!forward.synchronized) return;
    parts_.shadow_gradients->before_shadow();
    if (parts_.delayed_reduction) parts_.delayed_reduction->set_divisor(parts_.divisor(&round));
    const std::vector<at::Tensor> unused = parts_.reducer->shadow_backward();
    parts_.shadow_gradients->after_shadow(unused);
  }

  void post_hook(const JoinEnd& end) override {
    if (parts_.low_precision) parts_.low_precision->restore();
    parts_.shadow_gradients->end_join();
    if (parts_.group->size() == 1) return;
    parts_.follow_buffers();
    const std::vector<at::Tensor> state = parts_.state(parts_.buffers_travel);
    // An elastic job goes by the versions of the parameters, and takes a step back that has not changed them.
    std::optional<internal::VersionsOfUnchanged> versions;
    if (dynamic_cast<const ChangingRanks*>(parts_.group.get()) != nullptr) versions.emplace(state);
    internal::broadcast_values(parts_.reducer->control(), state, end.last_joiner);
  }

 private:
  Parts& parts_;
};

std::unique_ptr<JoinHook> DdpCore::join_hook(const JoinOptions& options) {
  Parts& p = *parts_;
  p.start();
  if (p.delayed_reduction && !p.delayed_reduction->has_own_group()) {
    throw UnsupportedError(
        concat("delay_all_reduce_named_params in a Join needs a group that can be duplicated, which '", p.group->name(),
               "' cannot: a rank that has joined does not know when the others' backward passes reduce them."));
  }
  p.joined_ever = true;
  p.begun_in_join.reset();
  p.has_disagreed = false;
  p.divide_by_initial_world_size = options.divide_by_initial_world_size;
  return std::make_unique<Shadow>(p);
}

c10::Device DdpCore::join_device() const {
  return parts_->device.value_or(parts_->parameters.empty() ? c10::Device(c10::kCPU)
                                                            : parts_->parameters.front().device());
}

int DdpCore::Parts::divisor(const JoinRound* round) const {
  return round == nullptr || divide_by_initial_world_size ? group->size() : round->active;
}

bool DdpCore::Parts::has_new_rank(const JoinRound* round) {
  bool found = false;
  has_taken_part.resize(static_cast<std::size_t>(group->size()), false);
  for (std::size_t rank = 0; rank < has_taken_part.size(); ++rank) {
    if (has_taken_part[rank] || (round != nullptr && !round->is_active[rank])) continue;
    has_taken_part[rank] = true;
    found = true;
  }
  return found;
}

DdpCore::Parts::Forward DdpCore::Parts::agree(const Forward* mine, const JoinRound& round) {
  std::vector<std::int64_t> numbers(3, 0);
  if (mine != nullptr) numbers = {mine->synchronized ? 1 : 0, mine->buffers ? 1 : 0, mine->buffers_due ? 1 : 0};
  const auto all = internal::gather_integers(reducer->control(), numbers);
  const auto& agreed = all[static_cast<std::size_t>(round.highest_active)];
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (!round.is_active[rank] || (all[rank][0] == agreed[0] && all[rank][1] == agreed[1])) continue;
    has_disagreed = true;
    throw MismatchError(concat("In a Join, rank ", rank, " ran a ", all[rank][0] != 0 ? "synchronized" : "local",
                               " forward ", all[rank][1] != 0 ? "with" : "without",
                               " a broadcast of buffers, and rank ", round.highest_active, " a ",
                               agreed[0] != 0 ? "synchronized" : "local", " one ", agreed[1] != 0 ? "with" : "without",
                               "; use no_sync(), NoGradGuard and train() alike on all ranks."));
  }
  return {.synchronized = agreed[0] != 0, .buffers = agreed[1] != 0, .buffers_due = agreed[2] != 0};
}

void DdpCore::Parts::begin_forward(const Forward& forward, const JoinRound* round) {
  if (forward.synchronized || forward.buffers) start();
  if (forward.synchronized) {
    const bool joined = round != nullptr && round->active < group->size();
    reducer->set_participants(divisor(round), has_new_rank(round), joined ? round->highest_active : -1);
    reducer->before_forward();
  }
  if (forward.buffers) {
    follow_buffers();
    const internal::KeptVersions of_buffers(buffers);  // a forward before this one may have saved them for its backward
    internal::broadcast_values(reducer->control(), buffers, round != nullptr ? round->highest_active : 0);
  }
}

void DdpCore::Parts::start() {
  if (!reducer->started()) reducer->start();
  if (!delayed_reduction || delayed_reduction->has_group()) return;
  const std::shared_ptr<ProcessGroup> for_delayed = reducer->another_group();
  delayed_reduction->set_group(for_delayed, for_delayed != group);
  delayed_reduction->attach();
}

}  // namespace gradwire
