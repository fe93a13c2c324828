// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Steps and groups. zero_parts.cc has what lies where, zero_state.cc the state, zero_dealing.cc what changes with the
// ranks of an elastic job, zero_hook.cc the overlap with DDP.
#include "gradwire/optim/zero_redundancy_optimizer.h"

#include <exception>
#include <utility>

#include "gradwire/base/error.h"
#include "gradwire/base/log.h"
#include "gradwire/base/strings.h"
#include "gradwire/ddp/unfinished_passes_internal.h"
#include "gradwire/optim/zero_internal.h"

namespace gradwire {

using internal::copy_options;
using internal::kZeroName;
using internal::ParamGroups;
using internal::ZeroParts;
using internal::ZeroPiece;

namespace {

ParamGroups one_group(std::vector<at::Tensor> parameters) {
  ParamGroups groups;
  groups.emplace_back(std::move(parameters));
  return groups;
}

}  // namespace

ZeroRedundancyOptimizer::ZeroRedundancyOptimizer(std::vector<at::Tensor> parameters, OptimizerFactory factory,
                                                 ZeroOptions options)
    : ZeroRedundancyOptimizer(one_group(std::move(parameters)), std::move(factory), std::move(options)) {}

ZeroRedundancyOptimizer::ZeroRedundancyOptimizer(std::vector<torch::optim::OptimizerParamGroup> groups,
                                                 OptimizerFactory factory, ZeroOptions options)
    : ZeroRedundancyOptimizer(std::make_unique<ZeroParts>(std::move(groups), std::move(factory), std::move(options))) {}

ZeroRedundancyOptimizer::ZeroRedundancyOptimizer(std::unique_ptr<ZeroParts> parts)
    : Optimizer(parts->groups, parts->defaults->defaults().clone()), parts_(std::move(parts)) {
  // What the optimizer itself made of the groups' options and its defaults.
  copy_options(parts_->defaults->param_groups(), param_groups_);
  parts_->groups.clear();
}

ZeroRedundancyOptimizer::~ZeroRedundancyOptimizer() = default;

const std::shared_ptr<ProcessGroup>& ZeroRedundancyOptimizer::process_group() const noexcept { return parts_->group; }
const ZeroOptions& ZeroRedundancyOptimizer::options() const noexcept { return parts_->options; }

at::Tensor ZeroRedundancyOptimizer::step(LossClosure closure) {
  ZeroParts& p = *parts_;
  if (p.options.overlap_with_ddp) {
    if (closure == nullptr) return {};
    throw InvalidArgument(
        concat(kZeroName, ": with overlap_with_ddp the steps run in the backward pass; step() takes no closure."));
  }
  return step_and_share(std::move(closure), /*joined=*/false);
}

at::Tensor ZeroRedundancyOptimizer::step_and_share(LossClosure closure, bool joined) {
  ZeroParts& p = *parts_;
  p.require_dealt();
  p.consolidated.reset();
  // After the closure, in which DDP may go first, and before the first change.
  bool told = joined;
  const auto tell_join = [&] {
    if (!std::exchange(told, true)) Join::notify(*this);
  };
  const auto require_averages = [&] {
    internal::require_passes_ended(internal::parameters_in(param_groups_), concat("the step of ", kZeroName));
  };
  at::Tensor loss;
  try {
    adopt_added_groups();
    torch::optim::Optimizer& local = local_optimizer();
    copy_options(param_groups_, local.param_groups());
    p.keep(param_groups_);
    if (closure == nullptr) {
      require_averages();
      tell_join();
      local.step();
    } else {
      loss = local.step([&] {
        at::Tensor result = closure();
        require_averages();
        tell_join();
        return result;
      });
      tell_join();
    }
    if (p.copy != nullptr) {
      copy_options(param_groups_, p.copy->param_groups());
      p.copy->step();
    }
    p.kept.stepped = true;
  } catch (const EarlyTermination&) {
    throw;
  } catch (const std::exception& error) {
    // The others are on their way to the exchange. The user's own group is not ours to end.
    if (p.channel != p.group)
      p.channel->abort(concat("The step of ", kZeroName, " failed on rank ", p.rank(), ": ", describe(error)));
    throw;
  }
  for (const auto& piece : p.pieces) piece->shared.share(*p.channel, piece->owner);
  return loss;
}

class ZeroRedundancyOptimizer::Shadow final : public JoinHook {
 public:
  explicit Shadow(ZeroRedundancyOptimizer& optimizer) : optimizer_(optimizer) {}
  void main_hook(const JoinRound&) override { optimizer_.step_and_share(nullptr, /*joined=*/true); }
  bool is_unfinished(bool begun) const override { return !begun; }

  // The other ranks are on their way to the exchange.
  bool abandon_hook(bool, const std::string& what) noexcept override {
    const ZeroParts& p = *optimizer_.parts_;
    if (p.channel == p.group) return false;
    try {
      p.channel->abort(concat("rank ", p.rank(), " left a Join before the step of ", kZeroName, ": ", what));
    } catch (const std::exception& error) {
      log::error(error.what());
    }
    return true;
  }

 private:
  ZeroRedundancyOptimizer& optimizer_;
};

std::unique_ptr<JoinHook> ZeroRedundancyOptimizer::join_hook(const JoinOptions&) {
  if (parts_->options.overlap_with_ddp) return std::make_unique<JoinHook>();
  return std::make_unique<Shadow>(*this);
}

c10::Device ZeroRedundancyOptimizer::join_device() const { return param_groups_[0].params()[0].device(); }

torch::optim::Optimizer& ZeroRedundancyOptimizer::local_optimizer() {
  if (parts_->options.overlap_with_ddp) {
    throw InvalidArgument(concat(kZeroName, ": with overlap_with_ddp there is no one local optimizer."));
  }
  return *parts_->pieces[static_cast<std::size_t>(parts_->rank())]->optimizer;
}

void ZeroRedundancyOptimizer::add_param_group(const torch::optim::OptimizerParamGroup& group) {
  ParamGroups all = param_groups_;
  all.push_back(group);
  parts_->require_usable(all);
  parts_->consolidated.reset();
  Optimizer::add_param_group(group);
  try {
    adopt_added_groups();
  } catch (...) {
    param_groups_.pop_back();
    throw;
  }
}

void ZeroRedundancyOptimizer::adopt_added_groups() {
  ZeroParts& p = *parts_;
  for (std::size_t i = 0; i < p.known.size(); ++i) {
    if (i < param_groups_.size() && param_groups_[i].params().size() == p.known[i]) continue;
    throw InvalidArgument(concat(kZeroName, ": the parameters of group ", i,
                                 " changed; parameters come in groups of their own, by add_param_group()."));
  }
  if (param_groups_.size() == p.known.size()) return;
  p.require_usable(param_groups_);
  p.require_agreement(param_groups_);
  p.place_groups(param_groups_);
}

int ZeroRedundancyOptimizer::owner_of(const at::Tensor& parameter) const {
  const auto found = parts_->owners.find(parameter.unsafeGetTensorImpl());
  if (found == parts_->owners.end()) {
    throw InvalidArgument(concat(kZeroName, ": owner_of() was asked for a tensor that is not among the parameters."));
  }
  if (parts_->options.overlap_with_ddp && !parts_->placed) {
    throw InvalidArgument(concat(kZeroName, ": with overlap_with_ddp owners are known after the first update."));
  }
  if (parts_->fused) {
    throw InvalidArgument(concat(kZeroName, ": with the fused hook several ranks step parts of one parameter."));
  }
  return found->second;
}

}  // namespace gradwire
