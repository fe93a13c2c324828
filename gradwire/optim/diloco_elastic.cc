// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// DiLoCo when the ranks of its group change.
#include <ATen/Functions.h>
#include <c10/core/GradMode.h>
#include <torch/serialize/input-archive.h>
#include <torch/serialize/output-archive.h>

#include <algorithm>
#include <utility>

#include "gradwire/base/error.h"
#include "gradwire/base/log.h"
#include "gradwire/base/strings.h"
#include "gradwire/ddp/archive_bytes_internal.h"
#include "gradwire/ddp/byte_exchange_internal.h"
#include "gradwire/ddp/replica_sync_internal.h"
#include "gradwire/optim/diloco_internal.h"
#include "gradwire/optim/diloco_meeting_internal.h"

namespace gradwire {
namespace {

using internal::DilocoFragment;
using internal::DilocoParts;
using internal::DilocoPhase;
using internal::DilocoPlan;
using internal::FragmentStanding;
using internal::WorkerStanding;
using Fragments = std::vector<DilocoParts::Scheduled>;

constexpr std::size_t kNumbersBefore = 2;      // in a row of numbers: of the worker
constexpr std::size_t kNumbersOfFragment = 5;  // and of each fragment

std::vector<std::int64_t> to_numbers(const WorkerStanding& worker) {
  std::vector<std::int64_t> numbers{worker.holds ? 1 : 0, worker.steps};
  for (const FragmentStanding& own : worker.fragments) {
    numbers.insert(numbers.end(), {own.exchanges, own.begun_at, static_cast<std::int64_t>(own.phase),
                                   own.contributes ? 1 : 0, own.hash});
  }
  return numbers;
}

WorkerStanding from_numbers(const std::vector<std::int64_t>& numbers) {
  WorkerStanding worker{.holds = numbers[0] != 0, .steps = numbers[1], .fragments = {}};
  for (std::size_t at = kNumbersBefore; at < numbers.size(); at += kNumbersOfFragment) {
    worker.fragments.push_back({.exchanges = numbers[at],
                                .begun_at = numbers[at + 1],
                                .phase = static_cast<DilocoPhase>(numbers[at + 2]),
                                .contributes = numbers[at + 3] != 0,
                                .hash = numbers[at + 4]});
  }
  return worker;
}

std::string save_shared(const Fragments& fragments, std::int64_t steps) {
  torch::serialize::OutputArchive archive;
  archive.write("steps", c10::IValue(steps));
  for (std::size_t i = 0; i < fragments.size(); ++i) {
    torch::serialize::OutputArchive part(archive.compilation_unit());
    fragments[i].fragment->save(part, DilocoFragment::Scope::shared);
    archive.write(concat("fragment", i), part);
  }
  return internal::archive_bytes(archive);
}

// Returns the number of steps.
std::int64_t load_shared(const Fragments& fragments, const std::string& bytes) {
  torch::serialize::InputArchive archive = internal::read_archive(bytes);
  for (std::size_t i = 0; i < fragments.size(); ++i) {
    torch::serialize::InputArchive part;
    archive.read(concat("fragment", i), part);
    fragments[i].fragment->load(part, DilocoFragment::Scope::shared);
  }
  c10::IValue steps;
  archive.read("steps", steps);
  return steps.toInt();
}

void log_plan(const DilocoPlan& plan, int workers, std::int64_t steps) {
  std::string again;
  for (const DilocoPlan::Fragment& fragment : plan.fragments) {
    if (fragment.again) again += concat(again.empty() ? "; the exchange of step " : ", ", fragment.begun_at);
  }
  log::info(concat("DilocoAverager: ", workers, " workers go on after step ", steps, "; ", plan.receivers.size(),
                   " of them take the state of rank ", plan.donor, again, again.empty() ? "" : " is done again"));
}

}  // namespace

std::shared_ptr<ProcessGroup> DilocoAverager::exchange_group() const { return parts_->group; }
std::string DilocoAverager::exchange_identity() const {
  return concat(parts_->identity(), ", outer optimizer = ", parts_->outer_optimizer);
}
std::int64_t DilocoAverager::steps_ended() const { return parts_->steps; }

bool DilocoAverager::looks_before(std::int64_t step) const {
  return parts_->begins_at(step + 1) || parts_->begins_at(step - parts_->options.overlap);
}

std::int64_t DilocoAverager::boundary_after(std::int64_t step) const {
  std::int64_t next = step + 1;
  while (!parts_->begins_at(next)) ++next;
  return next + parts_->options.overlap;
}

void DilocoAverager::leave_group() {
  DilocoParts& p = *parts_;
  p.is_elastic = true;
  p.is_in_group = false;
  p.meeting.reset();
  for (const auto& [number, fragment] : p.fragments) {
    fragment->leave_group();
    fragment->keep_differences();
  }
}

SeparateWorkers::Meeting DilocoAverager::meet(bool holds, bool fresh) {
  DilocoParts& p = *parts_;
  ProcessGroup& group = *p.group;
  WorkerStanding mine{.holds = holds, .steps = p.steps, .fragments = {}};
  for (const auto& [number, fragment] : p.fragments) mine.fragments.push_back(fragment->standing());
  std::vector<WorkerStanding> workers;
  for (const auto& numbers : internal::gather_integers(group, to_numbers(mine)))
    workers.push_back(from_numbers(numbers));
  DilocoPlan plan = internal::plan_meeting(workers, fresh);
  if (plan.donor < 0) return {};
  // The donor gives what is left when the averages that are given up have gone.
  for (std::size_t i = 0; i < p.fragments.size() && !plan.receives(group.rank()); ++i) {
    DilocoFragment& fragment = *p.fragments[i].fragment;
    if (plan.fragments[i].again && fragment.begun_at() == plan.fragments[i].begun_at) fragment.take_back();
  }
  std::string state;
  if (!plan.receivers.empty())
    state = internal::give_bytes(group, group.rank() == plan.donor ? save_shared(p.fragments, p.steps) : std::string(),
                                 plan.donor, plan.receivers);
  const Meeting meeting{.donor = plan.donor, .receivers = plan.receivers};
  p.meeting = DilocoParts::Met{std::move(plan), std::move(state)};
  return meeting;
}

void DilocoAverager::apply_meeting() {
  DilocoParts& p = *parts_;
  GRADWIRE_CHECK(p.meeting.has_value());
  const auto [plan, state] = *std::exchange(p.meeting, std::nullopt);
  const int rank = p.group->rank();
  if (plan.receives(rank)) p.steps = load_shared(p.fragments, state);
  for (std::size_t i = 0; i < p.fragments.size(); ++i)
    p.fragments[i].fragment->change_ranks(plan.fragments[i].share, plan.fragments[i].begun_at);
  if (rank == plan.donor) log_plan(plan, p.group->size(), p.steps);
  p.is_in_group = true;
}

void DilocoAverager::resume() {
  DilocoParts& p = *parts_;
  std::vector<DilocoFragment*> in_order;
  for (const auto& [number, fragment] : p.fragments) in_order.push_back(fragment.get());
  std::stable_sort(in_order.begin(), in_order.end(),
                   [](const auto* one, const auto* other) { return one->begun_at() < other->begun_at(); });
  for (DilocoFragment* const fragment : in_order) fragment->begin_again(p.lane.get());
  p.do_what_is_due(p.steps);
}

void DilocoAverager::settle() {
  for (const auto& [number, fragment] : parts_->fragments) fragment->await();
}

}  // namespace gradwire
