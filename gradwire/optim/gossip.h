// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Gossip: workers far apart train by themselves for many steps, and then average with one other worker each.
//
//   auto gossip = std::make_shared<gradwire::GossipAverager>(net->parameters(),
//                                                            gradwire::GossipOptions{.inner_steps = 100});
//   gradwire::PostLocalSGDOptimizer optimizer(
//       std::make_unique<torch::optim::AdamW>(net->parameters(), torch::optim::AdamWOptions(4e-4)), gossip);
//
// For links that are not one switch: no exchange but the first waits for more than two workers, and a worker sends as
// many bytes whatever their number. The workers' parameters stay near each other, but are never equal.
//
// Kolehmainen, Blagoev, Donaghy, Ersoy, Nies: NoLoCo: No-all-reduce Low Communication Training Method for Large Models
// (2025).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "gradwire/optim/model_averaging.h"
#include "gradwire/process_group/process_group.h"

namespace gradwire {

// The options must be the same on all ranks.
struct GossipOptions {
  std::shared_ptr<ProcessGroup> process_group = nullptr;  // null: the default group
  std::int64_t inner_steps = 100;                         // the number of steps between two exchanges; at least 1
  double momentum = 0.5;                                  // of the outer step; in [0, 1)
  double lr = 0.7;                                        // the learning rate of the outer step; above 0
  // How far a worker goes to the mean of its pair: 0 not at all, 1 all the way. In [0, 2). Above 0, the differences
  // between workers shrink.
  double gamma = 1;
  std::uint64_t seed = 0;  // of the pairs
};

// An averager for PostLocalSGDOptimizer. Each rank keeps slow parameters s and a momentum m of its own. At the end of
// every inner_steps-th step the ranks are divided into pairs at random, the same pairs on all ranks; with an odd number
// of ranks, one stays alone. With the difference d = s - own parameters, and the means over the pair (of one rank that
// is alone: its own values):
//
//   m <- momentum m - lr mean(d) - gamma (s - mean(s))
//   s <- s + m
//
// and the rank's own parameters are set to s. A rank sends d and s to the other rank of its pair: twice the bytes of
// the parameters, once in inner_steps steps. To publish one model, average the slow parameters at the end
// (gradwire::average_parameters()).
//
// Memory of a rank beside the model: s, m, and while an exchange lasts four times the bytes of the parameters. Not
// thread-safe. Destroy this object before its group.
class GossipAverager final : public ModelAverager {
 public:
  // Collective: compares parameters and options, and gives all ranks the parameters of rank 0. Throws InvalidArgument,
  // before any communication, for no parameters, a parameter that is undefined, sparse, no leaf, listed twice or not
  // floating-point, options out of range, and where there is no group; UnsupportedError for the group of an Elastic;
  // MismatchError on all ranks when ranks differ.
  GossipAverager(std::vector<at::Tensor> parameters, GossipOptions options = {});
  ~GossipAverager() override;
  GossipAverager(const GossipAverager&) = delete;
  GossipAverager& operator=(const GossipAverager&) = delete;
  GossipAverager(GossipAverager&&) = delete;
  GossipAverager& operator=(GossipAverager&&) = delete;

  // Ends a step of training; exchanges with one other rank at each inner_steps-th step. `parameters` are the
  // constructor's; any other list throws InvalidArgument. Throws a MismatchError when ranks are at other steps, as when
  // they have loaded states of other steps: the first exchange of this object waits for all ranks and compares the
  // steps of all, a later one those of its pair. (So ranks that load after the first exchange, states of other steps,
  // may also find no partner: a TimeoutError after the group's timeout.) Throws the errors of ProcessGroup::send() and
  // recv(), also UnsupportedError for a group without messages. The step is not counted then, and nothing has changed.
  void average_parameters(const std::vector<at::Tensor>& parameters) override;
  std::int64_t step() const override;
  void set_step(std::int64_t step) override;
  // The group fails on this rank, and a rank that exchanges with this one gets a PeerError with `reason`, where the
  // group can tell it.
  void abort(const std::string& reason) override;

  // Write and read the step, the slow parameters and the momentum. A run that continues on the same number of ranks
  // loads what the same rank saved, and has the same bits. Neither communicates. load() throws InvalidArgument, and
  // changes nothing, for an archive of other parameters or options.
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

  // Returns this rank's slow parameters, in the order of the constructor's. Their memory is this object's.
  std::vector<at::Tensor> slow_parameters() const;

 private:
  struct Parts;
  const std::unique_ptr<Parts> parts_;
};

// Returns the rank with which each rank of `size` exchanges in round `round`, by rank; a rank that stays alone has its
// own number. The same for the same arguments in every process and build. Throws InvalidArgument for a size below 1.
std::vector<int> gossip_pairs(int size, std::uint64_t seed, std::uint64_t round);

}  // namespace gradwire
