// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/ddp/join.h"

#include <ATen/Functions.h>

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
  abort(what.c_str());
  leave();
}

void Join::finish() {
  if (std::exchange(finished_, true)) return;
  try {
    shadow();
  } catch (const EarlyTermination&) {
    leave();
    throw;
  } catch (const std::exception& error) {
    abort(error.what());
    leave();
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
    for (const auto& hook : hooks_) hook->main_hook(round_);
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
  if (&join->joinables_.front().get() != &joinable) {
    if (join->round_.number > 0) return &join->round_;
    throw InvalidArgument(
        "A joinable began its collectives before the first one of its Join did; in each iteration they go in the order "
        "in which Join got them.");
  }
  join->exchange(/*active=*/true);
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
  hooks_.clear();  // each may tell the other ranks what it leaves undone; the joinables may end before this object
}

void Join::abort(const char* what) noexcept {
  if (!own_group_) return;
  try {
    group_->abort(concat("rank ", group_->rank(), " left a Join early: ", what));
  } catch (const std::exception& error) {
    log::error(error.what());
  }
}

}  // namespace gradwire
