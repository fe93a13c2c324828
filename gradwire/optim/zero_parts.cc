// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include <torch/optim/lbfgs.h>

#include <algorithm>
#include <utility>

#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "gradwire/ddp/replica_sync_internal.h"
#include "gradwire/optim/layout_hash_internal.h"
#include "gradwire/optim/zero_internal.h"
#include "gradwire/process_group/closable.h"
#include "gradwire/process_group/init.h"

namespace gradwire::internal {
namespace {

// What ranks compare. The last one tells lists of one length apart.
enum Compared : std::size_t { kParameters, kGroups, kElements, kViews, kOverlap, kHash, kComparedCount };

ParamGroups without_parameters(const ParamGroups& groups) {
  ParamGroups empty;
  for (const auto& group : groups) empty.push_back(with_options_of(group, {}));
  return empty;
}

}  // namespace

void require_open_group(const ProcessGroup& group) { require_open_group(group, kZeroName, "the optimizer again"); }

void require_same_parameters(ProcessGroup& group, const std::vector<at::Tensor>& parameters, std::size_t groups,
                             const ZeroOptions& options) {
  std::vector<std::int64_t> mine(kComparedCount);
  mine[kParameters] = static_cast<std::int64_t>(parameters.size());
  mine[kGroups] = static_cast<std::int64_t>(groups);
  for (const at::Tensor& parameter : parameters) mine[kElements] += parameter.numel();
  mine[kViews] = options.parameters_as_bucket_view ? 1 : 0;
  mine[kOverlap] = options.overlap_with_ddp ? 1 : 0;
  mine[kHash] = hash_of_layouts(parameters);
  const auto describe_rank = [](const std::vector<std::int64_t>& has) {
    return concat(has[kParameters], " parameters with ", has[kElements], " elements in ", has[kGroups],
                  " groups, parameters_as_bucket_view = ", has[kViews], " and overlap_with_ddp = ", has[kOverlap]);
  };
  const auto ranks = gather_integers(group, mine);
  for (std::size_t other = 1; other < ranks.size(); ++other) {
    if (ranks[other] == ranks[0]) continue;
    throw MismatchError(
        concat(kZeroName, " was given ", describe_rank(ranks[0]), " on rank 0, and ", describe_rank(ranks[other]),
               " on rank ", other,
               "; all ranks must pass parameters of the same sizes, strides and types in the same order, and "
               "the same options."));
  }
}

ZeroParts::ZeroParts(ParamGroups given, OptimizerFactory make_optimizer, ZeroOptions chosen)
    : factory(std::move(make_optimizer)),
      options(std::move(chosen)),
      group(options.process_group != nullptr ? options.process_group : default_group()),
      groups(std::move(given)),
      place{.rank = group->rank(), .size = group->size()},
      partition(place.size) {
  if (factory == nullptr) throw InvalidArgument(concat(kZeroName, " needs a factory of optimizers; got null."));
  require_usable(groups);
  defaults = make(without_parameters(groups));
  require_agreement(groups);
  channel = group->dup();
  if (channel == nullptr) channel = group;
  place_groups(groups);
}

void ZeroParts::require_usable(const ParamGroups& all) const {
  const std::vector<at::Tensor> parameters = parameters_in(all);
  require_parameters(kZeroName, parameters);
  if (options.overlap_with_ddp && all.size() > 1) {
    throw InvalidArgument(concat(kZeroName, ": overlap_with_ddp takes one parameter group; got ", all.size(),
                                 ". Leave it false to use several."));
  }
  for (const at::Tensor& parameter : parameters) {
    if (group->supports(parameter.device().type())) continue;
    throw InvalidArgument(concat(kZeroName, ": a parameter is on ", parameter.device(), ", which the group '",
                                 group->name(), "' does not serve."));
  }
}

std::unique_ptr<torch::optim::Optimizer> ZeroParts::make(ParamGroups over) const {
  const std::size_t count = over.size();
  auto optimizer = factory(std::move(over));
  if (optimizer == nullptr) throw InvalidArgument(concat(kZeroName, ": the factory returned no optimizer."));
  if (dynamic_cast<torch::optim::LBFGS*>(optimizer.get()) != nullptr) {
    throw InvalidArgument(concat(kZeroName, " cannot share out LBFGS, which looks at all parameters at once."));
  }
  if (optimizer->param_groups().size() != count) {
    throw InvalidArgument(concat(kZeroName, ": the factory got ", count,
                                 " parameter groups and made an optimizer with ", optimizer->param_groups().size(),
                                 "; it must pass them on as they are."));
  }
  return optimizer;
}

void ZeroParts::place_groups(const ParamGroups& all) {
  const bool first = known.empty();
  if (first && !options.overlap_with_ddp) {
    for (int owner = 0; owner < place.size; ++owner) pieces.push_back(make_piece(owner));
  }
  ParamGroups mine;
  ParamGroups copied;
  for (std::size_t index = known.size(); index < all.size(); ++index) {
    const std::vector<at::Tensor>& parameters = all[index].params();
    std::vector<std::int64_t> sizes;
    for (const at::Tensor& parameter : parameters) sizes.push_back(parameter.numel());
    const std::vector<int> given_to = partition.add_group(sizes);
    for (std::size_t i = 0; i < parameters.size(); ++i) owners[parameters[i].unsafeGetTensorImpl()] = given_to[i];
    known.push_back(parameters.size());
    for (const auto& piece : pieces) {
      std::vector<at::Tensor> part;
      for (std::size_t i = 0; i < parameters.size(); ++i) {
        if (given_to[i] == piece->owner) part.push_back(parameters[i]);
      }
      piece->shared.add(part);
      if (piece->owner == rank()) mine.push_back(with_options_of(all[index], part));
      if (piece->owner == place.copied_rank()) copied.push_back(with_options_of(all[index], part));
      piece->groups.emplace_back(std::move(part));
    }
  }
  if (options.overlap_with_ddp) return;
  const auto extend = [&](std::unique_ptr<torch::optim::Optimizer>& optimizer, ParamGroups added) {
    if (first) {
      optimizer = make(std::move(added));
    } else {
      for (const auto& one : added) optimizer->add_param_group(one);
    }
  };
  extend(pieces[static_cast<std::size_t>(rank())]->optimizer, std::move(mine));
  if (place.copied_rank() >= 0) extend(copy, std::move(copied));
}

}  // namespace gradwire::internal
