// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// How a HybridGroup is made, takes its turns and ends.
#include "gradwire/process_group/hybrid/hybrid_group.h"

#include <ATen/Functions.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include <algorithm>
#include <map>
#include <utility>

#include "gradwire/base/call_name.h"
#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "gradwire/process_group/c10d/engine_traits_internal.h"
#include "gradwire/process_group/hybrid/fault_text_internal.h"
#include "gradwire/process_group/hybrid/hybrid_call_internal.h"
#include "gradwire/process_group/hybrid/hybrid_state_internal.h"
#include "gradwire/process_group/ordered_calls_internal.h"
#include "gradwire/process_group/outer_ranks_internal.h"
#include "gradwire/process_group/shut_down_internal.h"
#include "gradwire/process_group/translated_work_internal.h"
#include "gradwire/process_group/validate_internal.h"

namespace gradwire {
namespace {

// The ranks in `everyone` of the ranks of `local`. Their numbers are not known before: an error names nobody.
std::vector<std::int64_t> find_ranks(ProcessGroup& everyone, ProcessGroup& local) try {
  const at::Tensor mine = at::tensor({static_cast<std::int64_t>(everyone.rank())});
  const at::Tensor of_host = at::empty({local.size()}, at::kLong);
  local.all_gather_into_tensor(of_host, mine)->wait();
  const auto* const ranks = of_host.const_data_ptr<std::int64_t>();
  return {ranks, ranks + local.size()};
} catch (const PeerError& error) {
  throw PeerError(error.what(), {});
} catch (const TimeoutError& error) {
  throw TimeoutError(error.what(), {});
}

// The lowest rank of the host of every rank, by rank. Throws InvalidArgument on all ranks when one's `local` is not in
// the order of `everyone`.
std::vector<int> find_first_ranks(ProcessGroup& everyone, ProcessGroup& local) {
  const std::vector<std::int64_t> ranks = find_ranks(everyone, local);
  const bool in_order = std::is_sorted(ranks.begin(), ranks.end());
  const at::Tensor first = at::tensor({in_order ? ranks.front() : std::int64_t{-1}});
  const at::Tensor of_all = at::empty({everyone.size()}, at::kLong);
  everyone.all_gather_into_tensor(of_all, first)->wait();
  const auto* const begin = of_all.const_data_ptr<std::int64_t>();
  std::vector<int> firsts(begin, begin + everyone.size());
  for (std::size_t rank = 0; rank < firsts.size(); ++rank) {
    if (firsts[rank] >= 0) continue;
    throw InvalidArgument(concat("hybrid group on rank ", everyone.rank(), ": the group of rank ", rank,
                                 "'s host does not have its ranks in the order of the whole group"));
  }
  return firsts;
}

// Numbers the hosts by their lowest ranks. `given` has any numbers, by rank.
std::vector<int> number_hosts(const std::vector<int>& given) {
  std::map<int, int> numbers;
  std::vector<int> host_of;
  for (const int host : given) host_of.push_back(numbers.emplace(host, static_cast<int>(numbers.size())).first->second);
  return host_of;
}

std::vector<std::vector<int>> group_by_host(const std::vector<int>& host_of) {
  std::vector<std::vector<int>> ranks_of(static_cast<std::size_t>(*std::max_element(host_of.begin(), host_of.end())) +
                                         1);
  for (std::size_t rank = 0; rank < host_of.size(); ++rank)
    ranks_of[static_cast<std::size_t>(host_of[rank])].push_back(static_cast<int>(rank));
  return ranks_of;
}

bool have_one_size(const std::vector<std::vector<int>>& ranks_of) {
  return std::all_of(ranks_of.begin(), ranks_of.end(),
                     [&](const auto& ranks) { return ranks.size() == ranks_of.front().size(); });
}

// The ranks of the group between hosts that a rank with the number `local` on its host is in, host by host.
std::vector<int> ranks_across(const std::vector<std::vector<int>>& ranks_of, int local) {
  std::vector<int> ranks;
  for (const auto& host : ranks_of) {
    if (static_cast<std::size_t>(local) < host.size()) ranks.push_back(host[static_cast<std::size_t>(local)]);
  }
  return ranks;
}

void require_groups(const std::shared_ptr<ProcessGroup>& everyone, const std::shared_ptr<ProcessGroup>& local) {
  if (everyone == nullptr || local == nullptr) throw InvalidArgument("hybrid group: there is no group to make it of");
}

// The exception under way, which ends the making of a group, with the ranks at fault. The other ranks learn of them,
// too: to them this rank would only seem to have left.
[[noreturn]] void rethrow_told(ProcessGroup& everyone, ProcessGroup& local) {
  std::exception_ptr error = std::current_exception();
  if (!internal::is_about_peers(error)) std::rethrow_exception(error);
  if (const auto end = internal::end_by_others(error, everyone.rank())) error = end;
  const std::string told =
      internal::reason_with_culprits(error, everyone.rank(), internal::readable(internal::message_of(error)));
  everyone.abort(told);
  local.abort(told);
  std::rethrow_exception(error);
}

}  // namespace

std::shared_ptr<HybridGroup> HybridGroup::make(std::shared_ptr<ProcessGroup> everyone,
                                               std::shared_ptr<ProcessGroup> local) {
  require_groups(everyone, local);
  const std::vector<int> firsts = find_first_ranks(*everyone, *local);
  return make(std::move(everyone), std::move(local), firsts);
}

std::shared_ptr<HybridGroup> HybridGroup::make(std::shared_ptr<ProcessGroup> everyone,
                                               std::shared_ptr<ProcessGroup> local, const std::vector<int>& hosts) {
  require_groups(everyone, local);
  const auto rank = static_cast<std::size_t>(everyone->rank());
  if (hosts.size() != static_cast<std::size_t>(everyone->size()) ||
      std::count(hosts.begin(), hosts.end(), hosts[rank]) != local->size()) {
    throw InvalidArgument(concat("hybrid group on rank ", rank, ": the groups have ", everyone->size(), " ranks and ",
                                 local->size(), " on this host; the list of hosts says otherwise"));
  }
  std::vector<int> host_of = number_hosts(hosts);
  const bool even = have_one_size(group_by_host(host_of));
  const int color = even || local->rank() == 0 ? local->rank() : -1;
  // Host by host: the order of the ranks may be another one, where the hosts' ranks are not consecutive.
  std::shared_ptr<ProcessGroup> cross;
  try {
    cross = everyone->split(color, host_of[rank]);
  } catch (...) {
    rethrow_told(*everyone, *local);
  }
  const Milliseconds timeout = everyone->timeout();
  std::shared_ptr<HybridGroup> made(
      new HybridGroup({std::move(everyone), std::move(local), std::move(cross)}, std::move(host_of)));
  made->set_timeout(timeout);
  return made;
}

HybridGroup::HybridGroup(Groups groups, std::vector<int> host_of)
    : CallGroup(groups.everyone->rank(), groups.everyone->size()),
      groups_(std::move(groups)),
      host_of_(std::move(host_of)),
      ranks_of_(group_by_host(host_of_)),
      cross_ranks_(ranks_across(ranks_of_, groups_.local->rank())),
      even_(have_one_size(ranks_of_)),
      state_(std::make_shared<State>()),
      calls_(std::make_unique<internal::OrderedCalls>("gw-hybrid")) {}

HybridGroup::~HybridGroup() {
  if (!state_->owner.is_current()) return;
  calls_->close();
  if (calls_->under_way()) abort("the group was let go with work under way; call shutdown() to finish it first");
  calls_->finish();
}

int HybridGroup::local_rank_of(int rank) const {
  const std::vector<int>& ranks = ranks_of(host_of(rank));
  return static_cast<int>(std::find(ranks.begin(), ranks.end(), rank) - ranks.begin());
}

bool HybridGroup::supports(c10::DeviceType device) const {
  return groups_.everyone->supports(device) && groups_.local->supports(device);
}

bool HybridGroup::stages_devices() const { return true; }

std::string HybridGroup::describe(const char* operation) const {
  return concat(internal::name_group(*this), ": ", operation);
}

void HybridGroup::require_reduction(const char* operation, const std::vector<at::Tensor>& tensors, ReduceOp op) const {
  const internal::EngineTraits traits = internal::traits_of(groups_.everyone->name());
  for (const at::Tensor& tensor : tensors) {
    if (internal::can_reduce(traits, tensor.scalar_type(), op)) continue;
    throw UnsupportedError(concat(describe(operation), ": ", groups_.everyone->name(),
                                  ", which crosses hosts, has no product of complex numbers"));
  }
}

void HybridGroup::require_alive() const { state_->require_alive(); }

void HybridGroup::fail(const std::exception_ptr& error, const std::string& reason) const {
  {
    MutexLock lock(state_->mutex);
    if (state_->error) return;
    state_->error = error;
  }
  const std::string told = internal::reason_with_culprits(error, rank(), reason);
  // The network's groups first: ranks of this host learn of it through shared memory at once, others wait for this.
  if (groups_.cross != nullptr) groups_.cross->abort(told);
  groups_.everyone->abort(told);
  groups_.local->abort(told);
}

std::exception_ptr HybridGroup::in_own_ranks(const std::exception_ptr& error, const std::vector<int>* members) const {
  if (const auto end = internal::end_by_others(error, rank())) return end;
  // What this rank told the others, which one of them tells this rank again.
  if (const std::string text = internal::message_of(error); internal::culprits_in(text)) {
    try {
      std::rethrow_exception(error);
    } catch (const AbortedError&) {
      return std::make_exception_ptr(AbortedError(internal::readable(text)));
    } catch (const std::exception&) {
      return std::make_exception_ptr(PeerError(internal::readable(text), {}));
    }
  }
  return members == nullptr ? error : internal::in_outer_ranks(error, *members);
}

void HybridGroup::fail_and_throw(const std::exception& problem, const std::vector<int>* members,
                                 const std::string& context) const {
  const std::exception_ptr error = in_own_ranks(std::current_exception(), members);
  fail(error, context + internal::readable(problem.what()));
  std::rethrow_exception(error);
}

void HybridGroup::run_on(const std::vector<int>& members, const std::function<void()>& step) const {
  try {
    step();
  } catch (const PeerError& problem) {
    fail_and_throw(problem, &members, "");
  } catch (const TimeoutError& problem) {
    fail_and_throw(problem, &members, "");
  } catch (const MismatchError& problem) {
    fail_and_throw(problem, &members, "");
  } catch (const AbortedError& problem) {
    fail_and_throw(problem, &members, "");
  }
}

std::shared_ptr<Work> HybridGroup::own_message(std::shared_ptr<Work> message) const {
  // An error that is not about the end of the hybrid group is the message's own, in ranks that are the same here.
  const auto in_own_words = [state = state_, own_rank = rank()](const std::exception_ptr& error) {
    const auto end = internal::end_by_others(error, own_rank);
    if (end == nullptr) return error;
    MutexLock lock(state->mutex);
    return state->error ? state->error : end;
  };
  return std::make_shared<internal::TranslatedWork>(std::move(message), in_own_words);
}

std::shared_ptr<Work> HybridGroup::ordered(const char* operation, const CollectiveOptions& options,
                                           internal::Outputs outputs, Body body) {
  state_->owner.require_current("a process group");
  const Deadline deadline = Deadline::after(options.timeout.count() == 0 ? timeout() : options.timeout);
  const auto run = [this, state = state_, operation, deadline, tag = options.tag,
                    body = std::move(body)](const internal::Outputs&) {
    // Before anything of this group: where a callback of the call before has let the group go, that is an error.
    state->require_alive();
    // What the steps do to tensors is no part of anybody's graph.
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    Call call(*this, deadline, tag);
    const PartsOfCall steps;
    try {
      body(call);
    } catch (const std::exception& problem) {
      // Refused before anything was sent. After that the others are told, who would wait for this rank.
      if (dynamic_cast<const InvalidArgument*>(&problem) != nullptr && !call.has_met()) throw;
      if (dynamic_cast<const ResourceError*>(&problem) != nullptr && call.is_refused_to_all()) throw;
      fail_and_throw(problem, call.members(), concat(describe(operation), ": "));
    }
  };
  const auto work = options.async ? calls_->post(operation, std::move(outputs), run, shared_from_this())
                                  : calls_->run(std::move(outputs), run, [this] { abort(internal::kInterrupted); });
  if (work == nullptr) throw InvalidArgument(concat(describe(operation), ": the group was shut down; make a new one"));
  return work;
}

void HybridGroup::in_turn(const char* operation, const Body& body) {
  CollectiveOptions options;
  options.async = false;
  ordered(operation, options, internal::Outputs::list({}), body)->wait();
}

void HybridGroup::before_next_call(const Tensors&, std::function<void()> copy) {
  calls_->before_next(std::move(copy), shared_from_this());
}

void HybridGroup::abort(const std::string& reason) {
  if (!state_->owner.is_current()) return;
  fail(std::make_exception_ptr(AbortedError(concat(internal::name_group(*this), ": ", reason))), reason);
  state_->duplicates.abort_all(*this, reason);
}

std::exception_ptr HybridGroup::end() const {
  MutexLock lock(state_->mutex);
  return state_->error;
}

void HybridGroup::abort_because(const std::exception_ptr& error, const std::string& reason) {
  if (!internal::is_about_peers(error) || internal::peers_of(error).empty()) return abort(reason);
  if (!state_->owner.is_current()) return;
  fail(error, reason);
  state_->duplicates.abort_all(*this, reason);
}

std::exception_ptr end_of(const ProcessGroup& group) {
  const auto* const hybrid = dynamic_cast<const HybridGroup*>(&group);
  return hybrid == nullptr ? nullptr : hybrid->end();
}

void abort_because(ProcessGroup& group, const std::exception_ptr& error, const std::string& reason) {
  if (auto* const hybrid = dynamic_cast<HybridGroup*>(&group)) return hybrid->abort_because(error, reason);
  group.abort(reason);
}

void HybridGroup::shutdown() {
  if (!state_->owner.is_current()) return;
  const bool interrupted = calls_->finish([this] { abort(internal::kInterrupted); });
  const std::shared_ptr<ProcessGroup> parts[] = {groups_.cross, groups_.everyone, groups_.local};
  const std::exception_ptr error = internal::shut_down_all(parts);
  state_->duplicates.release(*this);
  if (interrupted) internal::throw_interrupted_shutdown(*this);
  if (error != nullptr) std::rethrow_exception(error);
}

bool HybridGroup::is_open() const { return gradwire::is_open(*groups_.everyone); }

}  // namespace gradwire
