// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// What a ZeroRedundancyOptimizer does when the ranks of its group change: steps that do not count, and parameters that
// are dealt anew.
#include <c10/core/GradMode.h>
#include <torch/serialize/input-archive.h>

#include <algorithm>
#include <set>
#include <utility>

#include "gradwire/base/error.h"
#include "gradwire/base/stable_hash.h"
#include "gradwire/base/strings.h"
#include "gradwire/hooks/split_optimizer_internal.h"
#include "gradwire/optim/zero_internal.h"

namespace gradwire {

using internal::copy_entry;
using internal::kZeroName;
using internal::move_state;
using internal::OptimizerEntry;
using internal::parameters_in;
using internal::ParamGroups;
using internal::require_state_of_sizes;
using internal::ZeroKept;
using internal::ZeroParts;
using internal::ZeroPlace;

namespace internal {

void ZeroParts::require_dealt() const {
  if (options.overlap_with_ddp || (group->size() == place.size && group->rank() == place.rank)) {
    return require_open_group(*group);
  }
  throw InvalidArgument(concat(kZeroName, ": this is rank ", group->rank(), " of ", group->size(),
                               ", and the state here is that of rank ", place.rank, " of ", place.size,
                               ". Over the group of an Elastic, call Elastic::add(optimizer) before run(). After this "
                               "rank has left an elastic job, the state of the other ranks is not here."));
}

std::vector<torch::optim::Optimizer*> ZeroParts::holders() const {
  std::vector<torch::optim::Optimizer*> all{pieces[static_cast<std::size_t>(rank())]->optimizer.get()};
  if (copy != nullptr) all.push_back(copy.get());
  return all;
}

void ZeroParts::place_anew(const ZeroPlace& chosen, const ParamGroups& all) {
  consolidated.reset();
  kept = {};
  copy.reset();
  pieces.clear();
  owners.clear();
  known.clear();
  place = chosen;
  partition = GreedyPartition(place.size);
  place_groups(all);
}

void ZeroParts::keep(const ParamGroups& all) {
  if (!kept.keeps || kept.holds) return;
  const c10::NoGradGuard no_grad;
  const std::vector<at::Tensor> parameters = parameters_in(all);
  kept.values.resize(parameters.size());
  kept.versions.clear();
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    at::Tensor& value = kept.values[i];
    if (!value.defined() || value.sizes() != parameters[i].sizes() || value.dtype() != parameters[i].dtype())
      value = at::empty_like(parameters[i].detach());
    value.copy_(parameters[i].detach());
    kept.versions.push_back(static_cast<std::uint32_t>(parameters[i]._version()));
  }
  std::map<void*, OptimizerEntry> before = std::exchange(kept.entries, {});
  for (torch::optim::Optimizer* const holder : holders()) {
    for (const at::Tensor& parameter : parameters_in(holder->param_groups())) {
      void* const key = parameter.unsafeGetTensorImpl();
      const auto found = holder->state().find(key);
      if (found == holder->state().end()) continue;
      OptimizerEntry& entry = kept.entries[key];
      if (const auto memory = before.find(key); memory != before.end()) entry = std::move(memory->second);
      copy_entry(*found->second, parameter, entry);
    }
  }
  kept.holds = true;
}

}  // namespace internal

std::string ZeroRedundancyOptimizer::sharding_identity() const {
  if (parts_->options.overlap_with_ddp) {
    throw UnsupportedError(concat(kZeroName,
                                  ": with overlap_with_ddp the steps run in the backward pass, and cannot be undone "
                                  "when a rank is lost; leave it false in an elastic job."));
  }
  std::vector<std::int64_t> sizes;
  for (const at::Tensor& parameter : parameters_in(param_groups_)) sizes.push_back(parameter.numel());
  return concat(kZeroName, " over ", sizes.size(), " parameters in ", param_groups_.size(), " groups (sizes ",
                stable_hash(std::span<const std::int64_t>(sizes)), ")");
}

std::vector<int> ZeroRedundancyOptimizer::owners_among(int size) const {
  internal::GreedyPartition partition(size);
  std::vector<int> all;
  for (const auto& group : param_groups_) {
    std::vector<std::int64_t> sizes;
    for (const at::Tensor& parameter : group.params()) sizes.push_back(parameter.numel());
    const std::vector<int> owners = partition.add_group(sizes);
    all.insert(all.end(), owners.begin(), owners.end());
  }
  return all;
}

void ZeroRedundancyOptimizer::begin_step() {
  ZeroKept& kept = parts_->kept;
  kept.keeps = true;
  kept.holds = kept.stepped = kept.undone = false;
}

std::vector<std::pair<at::Tensor, std::uint32_t>> ZeroRedundancyOptimizer::undo_step() {
  ZeroKept& kept = parts_->kept;
  if (!kept.holds) return {};
  const c10::NoGradGuard no_grad;
  const std::vector<at::Tensor> parameters = parameters_in(param_groups_);
  std::vector<std::pair<at::Tensor, std::uint32_t>> brought_back;
  for (std::size_t i = 0; i < kept.values.size(); ++i) {
    parameters[i].detach().copy_(kept.values[i]);
    brought_back.emplace_back(parameters[i], kept.versions[i]);
  }
  kept.undone = true;
  return brought_back;
}

std::vector<ShardedState::Holds> ZeroRedundancyOptimizer::held(Version version) const {
  const ZeroParts& p = *parts_;
  const std::vector<at::Tensor> parameters = parameters_in(param_groups_);
  std::vector<Holds> all(parameters.size(), Holds::no);
  if (version == Version::undone && !(p.kept.undone && p.kept.stepped)) return all;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const auto owner = p.owners.find(parameters[i].unsafeGetTensorImpl());
    if (owner == p.owners.end()) continue;
    if (owner->second == p.place.rank) all[i] = Holds::own;
    if (owner->second == p.place.copied_rank()) all[i] = Holds::copy;
  }
  return all;
}

// An optimizer over the parameters of these entries.
std::unique_ptr<torch::optim::Optimizer> ZeroRedundancyOptimizer::make_over(
    const std::vector<std::size_t>& entries) const {
  const std::vector<at::Tensor> parameters = parameters_in(param_groups_);
  std::vector<at::Tensor> chosen;
  for (const std::size_t entry : entries) chosen.push_back(parameters.at(entry));
  ParamGroups group;
  group.push_back(internal::with_options_of(param_groups_[0], std::move(chosen)));
  return parts_->make(std::move(group));
}

std::string ZeroRedundancyOptimizer::save_entries(const std::vector<std::size_t>& entries, Version version) const {
  const ZeroParts& p = *parts_;
  const bool from_kept = p.kept.undone && version == Version::counted;
  const auto over = make_over(entries);
  for (const at::Tensor& parameter : over->param_groups()[0].params()) {
    void* const key = parameter.unsafeGetTensorImpl();
    if (from_kept) {
      const auto found = p.kept.entries.find(key);
      if (found != p.kept.entries.end()) over->state()[key] = found->second->clone();
      continue;
    }
    for (const torch::optim::Optimizer* const holder : p.holders()) {
      const auto found = holder->state().find(key);
      if (found != holder->state().end()) over->state()[key] = found->second->clone();
    }
  }
  return internal::bytes_of_optimizer(*over);
}

std::string ZeroRedundancyOptimizer::read_entries(const std::vector<std::size_t>& entries,
                                                  const std::string& path) const {
  const auto plain = make_plain();
  torch::serialize::InputArchive archive;
  archive.load_from(path, at::Device(at::kCPU));
  plain->load(archive);
  require_state_of_sizes(*plain, kZeroName);
  const auto over = make_over(entries);
  move_state(*plain, *over, over->param_groups()[0].params());
  return internal::bytes_of_optimizer(*over);
}

std::string ZeroRedundancyOptimizer::new_entries(const std::vector<std::size_t>& entries) const {
  return internal::bytes_of_optimizer(*make_over(entries));
}

std::string ZeroRedundancyOptimizer::save_common() const { return internal::bytes_of_optimizer(*make_plain()); }

void ZeroRedundancyOptimizer::load_common(const std::string& bytes) {
  const auto plain = make_plain();
  internal::load_optimizer(*plain, bytes);
  internal::copy_options(plain->param_groups(), param_groups_);
}

void ZeroRedundancyOptimizer::deal(const Deal& deal) {
  ZeroParts& p = *parts_;
  // What this rank goes on with, whoever holds it now.
  const auto all = p.make(param_groups_);
  if (p.kept.undone && deal.version == Version::counted) {
    for (auto& [key, entry] : p.kept.entries) all->state()[key] = std::move(entry);
  } else {
    for (torch::optim::Optimizer* const holder : p.holders())
      move_state(*holder, *all, parameters_in(holder->param_groups()));
  }
  for (const Parcel& parcel : deal.parcels) {
    const auto over = make_over(parcel.entries);
    internal::load_optimizer(*over, parcel.bytes);
    internal::move_to_parameters(*over);
    move_state(*over, *all, over->param_groups()[0].params());
  }
  p.place_anew({.rank = deal.rank, .size = deal.size, .copies = deal.copies}, param_groups_);
  for (torch::optim::Optimizer* const holder : p.holders())
    move_state(*all, *holder, parameters_in(holder->param_groups()));
}

}  // namespace gradwire
