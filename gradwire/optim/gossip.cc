// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/optim/gossip.h"

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>
#include <torch/serialize/input-archive.h>
#include <torch/serialize/output-archive.h>

#include <algorithm>
#include <bit>
#include <numeric>
#include <string>
#include <utility>

#include "gradwire/base/error.h"
#include "gradwire/base/stable_hash.h"
#include "gradwire/base/strings.h"
#include "gradwire/ddp/replica_sync_internal.h"
#include "gradwire/optim/averager_agreement_internal.h"
#include "gradwire/optim/param_groups_internal.h"
#include "gradwire/process_group/changing_ranks.h"
#include "gradwire/process_group/flat_tensors_internal.h"
#include "gradwire/process_group/init.h"

namespace gradwire {
namespace {

constexpr const char* kGossip = "GossipAverager";
constexpr const char* kGossipOptions = "gossip_options";

void require_usable(const std::vector<at::Tensor>& parameters, const GossipOptions& options) {
  internal::require_floating_point(kGossip, parameters);
  const auto refuse = [](const char* what, auto value, const char* range) {
    throw InvalidArgument(concat(kGossip, ": ", what, " is ", value, "; it must be ", range, "."));
  };
  if (options.inner_steps < 1) refuse("inner_steps", options.inner_steps, "1 or more");
  if (!(options.momentum >= 0 && options.momentum < 1)) refuse("momentum", options.momentum, "at least 0 and below 1");
  if (!(options.lr > 0)) refuse("lr", options.lr, "above 0");
  if (!(options.gamma >= 0 && options.gamma < 2)) refuse("gamma", options.gamma, "at least 0 and below 2");
}

internal::Compared compared_of(const std::vector<at::Tensor>& parameters, const GossipOptions& options) {
  const auto bits = [](double value) { return std::bit_cast<std::int64_t>(value); };
  return {internal::compared_parameters(parameters),      {"inner_steps", options.inner_steps},
          {"momentum (as bits)", bits(options.momentum)}, {"lr (as bits)", bits(options.lr)},
          {"gamma (as bits)", bits(options.gamma)},       {"seed", static_cast<std::int64_t>(options.seed)}};
}

// A number below `bound`, from the hash of what it depends on.
std::size_t draw(std::uint64_t seed, std::uint64_t round, std::size_t place, std::size_t bound) {
  const std::int64_t numbers[] = {static_cast<std::int64_t>(seed), static_cast<std::int64_t>(round),
                                  static_cast<std::int64_t>(place)};
  std::uint64_t bits = stable_hash(std::span<const std::int64_t>(numbers));
  bits ^= bits >> 32;  // the low bits of the hash alone depend on the low bits of the numbers alone
  bits *= 0x9e3779b97f4a7c15U;
  return static_cast<std::size_t>((bits >> 32) % bound);
}

void require_equal_steps(int rank, std::int64_t step, int other, std::int64_t other_step) {
  if (step == other_step) return;
  throw MismatchError(concat(kGossip, ": rank ", rank, " exchanges at step ", step, " and rank ", other, " at step ",
                             other_step, "; load states of the same step on all ranks."));
}

}  // namespace

std::vector<int> gossip_pairs(int size, std::uint64_t seed, std::uint64_t round) {
  if (size < 1) throw InvalidArgument(concat("gossip_pairs(): the size is ", size, "; it must be 1 or more."));
  std::vector<int> order(static_cast<std::size_t>(size));
  std::iota(order.begin(), order.end(), 0);
  // Fisher and Yates; std::shuffle() may differ between libraries.
  for (std::size_t last = order.size() - 1; last > 0; --last)
    std::swap(order[last], order[draw(seed, round, last, last + 1)]);
  std::vector<int> partner(order.size());
  std::iota(partner.begin(), partner.end(), 0);
  for (std::size_t i = 0; i + 1 < order.size(); i += 2) {
    partner[static_cast<std::size_t>(order[i])] = order[i + 1];
    partner[static_cast<std::size_t>(order[i + 1])] = order[i];
  }
  return partner;
}

struct GossipAverager::Parts {
  Parts(std::vector<at::Tensor> all, GossipOptions chosen);
  std::string identity() const;
  // Throw a MismatchError when a rank, or the partner, is at another step: the ranks have loaded states of other steps,
  // and draw other pairs. The first is collective.
  void require_same_steps() const;
  void require_same_step(int partner) const;
  // Sends a tensor to the partner, and receives the partner's.
  void swap(int partner, const at::Tensor& sent, const at::Tensor& received) const;
  void exchange();

  // Parameters of one dtype and device, which travel in one message.
  struct List {
    std::vector<at::Tensor> parameters;
    at::Tensor slow;  // flat, in the order of `parameters`
    at::Tensor momentum;
  };
  // What the exchange makes of a list.
  struct Next {
    at::Tensor slow;
    at::Tensor momentum;
  };
  Next next_of(const List& list, int partner) const;

  const std::vector<at::Tensor> parameters;
  const GossipOptions options;
  std::shared_ptr<ProcessGroup> channel;  // a duplicate of the group, or the group itself
  std::vector<List> lists;
  std::int64_t steps = 0;
  bool has_exchanged = false;
};

GossipAverager::Parts::Parts(std::vector<at::Tensor> all, GossipOptions chosen)
    : parameters(std::move(all)), options(std::move(chosen)) {
  require_usable(parameters, options);
  const auto group = options.process_group != nullptr ? options.process_group : default_group();
  if (dynamic_cast<const ChangingRanks*>(group.get()) != nullptr) {
    throw UnsupportedError(
        concat(kGossip, ": the ranks of the group '", group->name(),
               "' may change (gradwire::Elastic), and pairs are drawn among the ranks that there are "
               "now; use DilocoAverager in an elastic job."));
  }
  channel = group->dup();
  if (channel == nullptr) channel = group;
  internal::require_agreement(kGossip, *channel, compared_of(parameters, options));
  internal::broadcast_values(*channel, parameters);
  internal::mark_changed(parameters);
  const c10::NoGradGuard no_grad;
  for (auto& list : internal::by_type_and_device(parameters)) {
    const at::Tensor slow = internal::flatten(list);
    lists.push_back({std::move(list), slow, at::zeros_like(slow)});
  }
}

std::string GossipAverager::Parts::identity() const {
  return concat(kGossip, " over ", parameters.size(), " parameters (sizes ",
                static_cast<std::uint64_t>(internal::compared_parameters(parameters).second),
                "), inner_steps = ", options.inner_steps, ", momentum = ", exact(options.momentum),
                ", lr = ", exact(options.lr), ", gamma = ", exact(options.gamma), ", seed = ", options.seed);
}

// On a device, an engine may run the messages of a pair in order, and let a large one wait for its receive. So there
// the rank with the higher number receives first.
void GossipAverager::Parts::swap(int partner, const at::Tensor& sent, const at::Tensor& received) const {
  const bool sends_first = sent.is_cpu() || channel->rank() < partner;
  std::shared_ptr<Work> sending = sends_first ? channel->send({sent}, partner) : nullptr;
  channel->recv({received}, partner)->wait();
  if (!sends_first) sending = channel->send({sent}, partner);
  sending->wait();
}

GossipAverager::Parts::Next GossipAverager::Parts::next_of(const List& list, int partner) const {
  const int rank = channel->rank();
  const at::Tensor difference = list.slow - internal::flatten(list.parameters);
  at::Tensor mean_difference = difference;
  at::Tensor mean_slow = list.slow;
  if (partner != rank) {
    const at::Tensor sent = at::stack({difference, list.slow});
    const at::Tensor received = at::empty_like(sent);
    swap(partner, sent, received);
    // Both ranks get the same bits: a + b is b + a.
    const at::Tensor mean = (sent + received) / 2;
    mean_difference = mean[0];
    mean_slow = mean[1];
  }
  const at::Tensor momentum =
      list.momentum * options.momentum - mean_difference * options.lr - (list.slow - mean_slow) * options.gamma;
  return {list.slow + momentum, momentum};
}

void GossipAverager::Parts::require_same_steps() const {
  const auto all = internal::gather_integers(*channel, {steps});
  for (std::size_t rank = 1; rank < all.size(); ++rank)
    require_equal_steps(0, all[0][0], static_cast<int>(rank), all[rank][0]);
}

void GossipAverager::Parts::require_same_step(int partner) const {
  if (partner == channel->rank()) return;
  const at::Tensor mine = at::full({1}, steps, at::kLong);
  const at::Tensor other = at::empty_like(mine);
  swap(partner, mine, other);
  require_equal_steps(channel->rank(), steps, partner, other.item<std::int64_t>());
}

void GossipAverager::Parts::exchange() {
  const c10::NoGradGuard no_grad;
  const auto round = static_cast<std::uint64_t>(steps / options.inner_steps);
  const int partner = gossip_pairs(channel->size(), options.seed, round)[static_cast<std::size_t>(channel->rank())];
  // Before the first exchange by all: a rank at another step may have no partner that waits for it.
  if (!has_exchanged) require_same_steps();
  require_same_step(partner);
  // Everything is received before anything changes.
  std::vector<Next> all;
  for (const List& list : lists) all.push_back(next_of(list, partner));
  for (std::size_t i = 0; i < lists.size(); ++i) {
    lists[i].slow.copy_(all[i].slow);
    lists[i].momentum.copy_(all[i].momentum);
    internal::unflatten(lists[i].slow, lists[i].parameters);
  }
  has_exchanged = true;
}

GossipAverager::GossipAverager(std::vector<at::Tensor> parameters, GossipOptions options)
    : parts_(std::make_unique<Parts>(std::move(parameters), std::move(options))) {}

GossipAverager::~GossipAverager() = default;

void GossipAverager::average_parameters(const std::vector<at::Tensor>& parameters) {
  Parts& p = *parts_;
  internal::require_same_parameters(kGossip, parameters, p.parameters, p.steps);
  if ((p.steps + 1) % p.options.inner_steps == 0) {
    try {
      p.exchange();
    } catch (...) {
      abort(describe(std::current_exception()));
      throw;
    }
  }
  ++p.steps;
}

std::int64_t GossipAverager::step() const { return parts_->steps; }

void GossipAverager::set_step(std::int64_t step) {
  if (step < 0) throw InvalidArgument(concat(kGossip, ": the step is ", step, "; it must be 0 or more."));
  parts_->steps = step;
}

void GossipAverager::abort(const std::string& reason) {
  parts_->channel->abort(concat(kGossip, " on rank ", parts_->channel->rank(), ": ", reason));
}

void GossipAverager::save(torch::serialize::OutputArchive& archive) const {
  ModelAverager::save(archive);
  archive.write(kGossipOptions, c10::IValue(parts_->identity()));
  for (std::size_t i = 0; i < parts_->lists.size(); ++i) {
    archive.write(concat("slow", i), parts_->lists[i].slow, /*is_buffer=*/true);
    archive.write(concat("momentum", i), parts_->lists[i].momentum, /*is_buffer=*/true);
  }
}

void GossipAverager::load(torch::serialize::InputArchive& archive) {
  internal::require_saved_with(kGossip, archive, kGossipOptions, parts_->identity());
  const c10::NoGradGuard no_grad;
  for (std::size_t i = 0; i < parts_->lists.size(); ++i) {
    at::Tensor slow, momentum;
    archive.read(concat("slow", i), slow, /*is_buffer=*/true);
    archive.read(concat("momentum", i), momentum, /*is_buffer=*/true);
    parts_->lists[i].slow.copy_(slow);
    parts_->lists[i].momentum.copy_(momentum);
  }
  ModelAverager::load(archive);
}

std::vector<at::Tensor> GossipAverager::slow_parameters() const {
  std::vector<at::Tensor> all(parts_->parameters.size());
  for (const Parts::List& list : parts_->lists) {
    const std::vector<at::Tensor> views = internal::cut_like(list.parameters, list.slow);
    for (std::size_t i = 0; i < views.size(); ++i) {
      const auto found = std::find_if(parts_->parameters.begin(), parts_->parameters.end(),
                                      [&](const at::Tensor& one) { return one.is_same(list.parameters[i]); });
      all[static_cast<std::size_t>(found - parts_->parameters.begin())] = views[i];
    }
  }
  return all;
}

}  // namespace gradwire
