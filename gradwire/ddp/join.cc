// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/ddp/join.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "gradwire/base/log.h"
#include "gradwire/base/strings.h"
#include "gradwire/process_group/changing_ranks.h"

namespace gradwire {
namespace {

// A rank that joined this many iterations ago writes a warning into the log.
constexpr std::uint64_t kLongWait = 1000;

}  // namespace

void JoinHook::main_hook(const JoinRound&) {}
void JoinHook::post_hook(const JoinEnd&) {}
bool JoinHook::is_unfinished(bool) const { return false; }
bool JoinHook::abandon_hook(bool, const std::string&) noexcept { return false; }

Join::Join(std::vector<std::reference_wrapper<Joinable>> joinables, JoinOptions options)
    : joinables_(std::move(joinables)), options_(options), exceptions_before_(std::uncaught_exceptions()) {
  if (joinables_.empty()) throw InvalidArgument("Join got no joinables; it needs at least one.");
  if (!options_.enable) {
    finished_ = true;
    return;
  }
  Joinable& first = joinables_.front();
  const std::shared_ptr<ProcessGroup> group = first.join_process_group();
  for (std::size_t i = 0; i < joinables_.size(); ++i) {
    const Joinable& joinable = joinables_[i];
    if (joinable.join_ != nullptr) {
      throw InvalidArgument(concat("Joinable ", i, " of a Join is in another one, which has not ended."));
    }
    if (joinable.join_process_group() != group) {
      throw InvalidArgument(
          concat("Joinable ", i, " of a Join has another process group than the first; a Join is over one group."));
    }
  }
  device_ = first.join_device();
  if (auto changing = std::dynamic_pointer_cast<ChangingRanks>(group)) {
    ranks_ = changing->current();
    changing_ = std::move(changing);
  }
  group_ = group->dup();
  own_group_ = group_ != nullptr;
  if (!own_group_) group_ = group;
  for (Joinable& joinable : joinables_) hooks_.push_back(joinable.join_hook(options_));
  begun_.assign(hooks_.size(), false);
  end_ = {.is_last_joiner = true, .last_joiner = group_->size() - 1};
  for (Joinable& joinable : joinables_) joinable.join_ = this;
}

Join::~Join() noexcept(false) {
  if (std::uncaught_exceptions() > exceptions_before_) {
    abandon("an exception");
    return;
  }
  finish();
}

void Join::abandon(const std::string& what) noexcept {
  if (std::exchange(finished_, true)) return;
  fail(what);
}

void Join::finish() {
  if (std::exchange(finished_, true)) return;
  try {
    require_finished(hooks_.size(), "called finish()");
    shadow();
  } catch (const EarlyTermination&) {
    leave();
    throw;
  } catch (const std::exception& error) {
    fail(error.what());
    throw;
  }
  leave();
}

void Join::shadow() {
  const std::uint64_t joined_at = round_.number;
  while (true) {
    exchange(/*active=*/false);
    if (round_.active == 0) break;
    if (options_.throw_on_early_termination) {
      throw EarlyTermination(concat("Rank ", group_->rank(), " has no more inputs; ", round_.active, " of ",
                                    group_->size(), " ranks have. throw_on_early_termination asks for this error."));
    }
    for (std::size_t i = 0; i < hooks_.size(); ++i) {
      shadowing_ = i;
      hooks_[i]->main_hook(round_);
    }
    shadowing_.reset();
    begun_.assign(hooks_.size(), true);
    if (round_.number - joined_at == kLongWait) {
      log::warn(concat("Rank ", group_->rank(), " joined ", kLongWait, " iterations ago and ", round_.active,
                       " ranks go on; give the ranks more even inputs."));
    }
  }
  for (const auto& hook : hooks_) hook->post_hook(end_);
}

void Join::require_same_ranks() const {
  if (changing_ == nullptr || changing_->current() == ranks_.lock()) return;
  throw InvalidArgument(
      "A Join of an elastic job began before the ranks changed, and goes on after that; begin and end it within one "
      "call of the step function.");
}

// Throws InvalidArgument when a rank that has joined waits for one of the first `before` joinables, where this rank
// does what `what` says instead.
void Join::require_finished(std::size_t before, const char* what) const {
  if (round_.active == 0 || round_.active == group_->size()) return;
  for (std::size_t i = 0; i < before; ++i) {
    if (!hooks_[i]->is_unfinished(begun_[i])) continue;
    throw InvalidArgument(concat(
        "In a Join, rank ", group_->rank(), " ", what, ", and joinable ", i, " of the ", hooks_.size(),
        " has not ended its part of the iteration: ", group_->size() - round_.active, " of ", group_->size(),
        " ranks have joined, and wait for it. In each iteration every joinable ends before the next one begins, in the "
        "order of the list: run the backward pass of each synchronized forward before another forward or step, and "
        "step a ZeroRedundancyOptimizer once after each forward; evaluate with NoGradGuard or outside of the Join."));
  }
}

void Join::exchange(bool active) {
  require_same_ranks();
  const auto options = at::TensorOptions(device_).dtype(at::kLong);
  const at::Tensor mine = at::full({1}, active ? 1 : 0, options);
  const at::Tensor all = at::zeros({group_->size()}, options);
  AllGatherOptions call;
  call.async = false;
  group_->all_gather({all.split(1)}, {mine}, call)->wait();
  const at::Tensor flags = all.cpu();

  JoinRound round{.number = round_.number + 1};
  for (int rank = 0; rank < group_->size(); ++rank) {
    const bool here = flags.const_data_ptr<std::int64_t>()[rank] != 0;
    round.is_active.push_back(here);
    if (!here) continue;
    ++round.active;
    round.highest_active = rank;
  }
  if (round.active > 0) end_ = {.is_last_joiner = active, .last_joiner = round.highest_active};
  round_ = std::move(round);
}

const JoinRound* Join::notify(Joinable& joinable) {
  Join* join = joinable.join_;
  if (join == nullptr) return nullptr;
  const auto place = std::find_if(join->joinables_.begin(), join->joinables_.end(),
                                  [&](const Joinable& each) { return &each == &joinable; });
  const auto number = static_cast<std::size_t>(place - join->joinables_.begin());
  const bool is_first = number == 0;
  try {
    join->require_finished(is_first ? join->hooks_.size() : number, is_first ? "begins the next one" : "goes on");
  } catch (const InvalidArgument& error) {
    join->abandon(error.what());
    throw;
  }
  if (!is_first) {
    if (join->round_.number == 0) {
      throw InvalidArgument(
          "A joinable began its collectives before the first one of its Join did; in each iteration they go in the "
          "order in which Join got them.");
    }
    join->begun_[number] = true;
    return &join->round_;
  }
  join->exchange(/*active=*/true);
  join->begun_.assign(join->hooks_.size(), false);
  join->begun_[0] = true;
  if (join->options_.throw_on_early_termination && join->round_.active < join->group_->size()) {
    join->finished_ = true;
    const ProcessGroup& group = *join->group_;
    const std::string what =
        concat("Rank ", group.rank(), " stops: ", group.size() - join->round_.active, " of ", group.size(),
               " ranks have no more inputs. throw_on_early_termination asks for this error.");
    join->leave();
    throw EarlyTermination(what);
  }
  return &join->round_;
}

void Join::leave() noexcept {
  for (Joinable& joinable : joinables_) {
    if (joinable.join_ == this) joinable.join_ = nullptr;
  }
  hooks_.clear();  // the joinables may end before this object
}

// The hooks first: an error of theirs says more than that of the group, for which other ranks may wait too.
void Join::fail(const std::string& what) noexcept {
  try {
    for (std::size_t i = 0; round_.active > 0 && i < hooks_.size(); ++i) {
      const bool begun = shadowing_ ? i <= *shadowing_ : begun_[i];
      const bool ended = shadowing_ ? i < *shadowing_ : begun && !hooks_[i]->is_unfinished(true);
      if (!ended && hooks_[i]->abandon_hook(begun, what)) break;
    }
  } catch (const std::exception& error) {
    log::error(error.what());
  }
  abort(what);
  leave();
}

void Join::abort(const std::string& what) noexcept {
  if (!own_group_) return;
  try {
    group_->abort(concat("rank ", group_->rank(), " left a Join early: ", what));
  } catch (const std::exception& error) {
    log::error(error.what());
  }
}

}  // namespace gradwire
