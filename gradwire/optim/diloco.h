// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// DiLoCo: workers far apart train by themselves for many steps, and then average how far they have come.
//
//   auto diloco = std::make_shared<gradwire::DilocoAverager>(
//       net->parameters(), gradwire::DilocoOptions{.inner_steps = 100, .hook = "int4:memory=error_feedback"});
//   gradwire::PostLocalSGDOptimizer optimizer(
//       std::make_unique<torch::optim::AdamW>(net->parameters(), torch::optim::AdamWOptions(4e-4)), diloco);
//   for (...) {
//     optimizer.zero_grad();
//     loss_of(net(x)).backward();      // no DistributedDataParallel: each worker has gradients of its own
//     optimizer.step();                // every 100th step communicates
//   }
//
// Douillard, Feng, Rusu, Chhaparia, Donchev, Kuncoro, Ranzato, Szlam, Shen: DiLoCo: Distributed Low-Communication
// Training of Language Models (2023). Fragments, overlap and mixing: Douillard, Donchev, Rush, Kale, Charles, Garrett,
// Teston, Lacey, McIlroy, Shen, Rame, Szlam, Ranzato, Barham: Streaming DiLoCo with overlapping communication (2025).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "gradwire/ddp/separate_workers.h"
#include "gradwire/optim/model_averaging.h"
#include "gradwire/optim/optimizer_factory.h"
#include "gradwire/process_group/process_group.h"

namespace gradwire {

namespace internal {
struct DilocoParts;
}  // namespace internal

// The options must be the same on all ranks.
struct DilocoOptions {
  std::shared_ptr<ProcessGroup> process_group = nullptr;  // null: the default group
  // The number of steps between two exchanges of a parameter (H in the paper). At least 1.
  std::int64_t inner_steps = 100;
  // The parameters are divided into this many fragments of about equal size, in their order. The exchanges of the
  // fragments are spread evenly over the inner steps. 1: all parameters are exchanged at one step. From 1 to
  // inner_steps.
  std::int64_t fragments = 1;
  // The number of steps for which an exchange may go on beside training (tau in the paper). The outer step takes place
  // that many steps after the exchange began. 0: the step that begins an exchange waits for its end. From 0 to
  // inner_steps - 1; more than 0 needs a group that can be duplicated.
  std::int64_t overlap = 0;
  // What a parameter keeps of its own value when the outer step arrives: it becomes mixing * own + (1 - mixing) *
  // outer. In [0, 1). The paper takes 0 without and 0.5 with overlap.
  double mixing = 0;
  // How the workers' differences are averaged: a hook as make_hook() describes it (hooks/registry.h). Each fragment has
  // a hook of its own, with its own memory of what it has not sent yet. "allreduce": exactly.
  std::string hook = "allreduce";
  // The outer optimizer, which steps with the averaged differences as gradients. Null: SGD with a learning rate of 0.7
  // and a Nesterov momentum of 0.9, as in the paper.
  OptimizerFactory outer = nullptr;
};

// An averager that makes DiLoCo of the optimizer whose steps it ends (PostLocalSGDOptimizer).
//
// Each rank keeps the outer parameters: what all workers agreed on last. At the end of every inner_steps-th step, the
// difference between the outer parameters and the rank's own parameters is averaged over the ranks. The outer optimizer
// steps the outer parameters with this average, and the rank's own parameters are set to them (see `mixing`). The outer
// parameters have the same bits on all ranks. So do the ranks' own parameters after an exchange, with one fragment, no
// overlap and no mixing.
//
// Memory of a rank beside the model: the outer parameters, the outer optimizer's state (for the default as much again),
// and the differences of the fragments. A rank sends the bytes of the hook for the elements of each fragment, once in
// inner_steps steps; float32 DDP sends inner_steps times as much.
//
// Between hosts, give the group of all ranks, each of which trains alone; or let the ranks of a host train together in
// DistributedDataParallel over a group of the host's ranks, and give the group of all ranks: equal parameters within
// the host remain equal.
//
// In an elastic job (Elastic::add(), elastic/elastic.h) make it over Elastic::group(). Then an exchange is done again
// by the workers that are left when one of them is lost, from the same differences, and counts when all have confirmed
// that they have its average. A worker that comes gets the outer parameters, for its own too, the outer optimizer's
// state and the exchanges under way; its inner optimizer begins anew. In an exchange that had begun before it came it
// does not count: the average is over the others. Each worker keeps its own memory of what the hook has not sent.
// Memory beside: the differences twice, and the hook's memory twice.
//
// Not thread-safe, but for the exchange under way, which this object runs on a thread of its own. Destroy this object
// before its group. The destructor waits for an exchange under way, unless an exception destroys this object: then the
// exchange fails on all ranks.
class DilocoAverager final : public ModelAverager, public SeparateWorkers {
 public:
  // Collective: compares parameters and options, of the outer optimizer its class and its options, and gives all ranks
  // the parameters of rank 0. Throws InvalidArgument, before any communication, for no parameters, a parameter that is
  // undefined, sparse, no leaf, listed twice or not floating-point, options out of range, a hook that make_hook()
  // refuses, and where there is no group; UnsupportedError for an overlap over a group that cannot be duplicated;
  // MismatchError on all ranks when ranks differ.
  DilocoAverager(std::vector<at::Tensor> parameters, DilocoOptions options = {});
  ~DilocoAverager() override;
  DilocoAverager(const DilocoAverager&) = delete;
  DilocoAverager& operator=(const DilocoAverager&) = delete;
  DilocoAverager(DilocoAverager&&) = delete;
  DilocoAverager& operator=(DilocoAverager&&) = delete;

  // Ends a step of training; collective at the steps that begin an exchange. `parameters` are the constructor's; any
  // other list throws InvalidArgument. Throws the errors of the exchange, also of one that began up to `overlap` steps
  // before, and those of the outer optimizer. When the hook or the outer optimizer fails on one rank, the others get a
  // PeerError that quotes the error, if the group can tell them. After an error the parameters are indeterminate, but
  // in an elastic job; continue from a checkpoint. Throws InvalidArgument after this worker has left its elastic job.
  void average_parameters(const std::vector<at::Tensor>& parameters) override;

  // Waits for the exchanges under way and ends them, as if their overlap had passed: at the end of training, before
  // outer_parameters() are published. All ranks call it after the same step. Throws as average_parameters().
  void finish_exchanges();

  std::int64_t step() const override;
  void set_step(std::int64_t step) override;
  // The group fails on this rank, and the other ranks get a PeerError with `reason`, in the next exchange at the
  // latest.
  void abort(const std::string& reason) override;

  // Write and read the step, the outer parameters, the outer optimizer's state, the hooks' memories, and the exchange
  // that is under way, for which save() waits. A run that continues on the same number of ranks loads what the same
  // rank saved, and has the same bits. Neither communicates. load() throws InvalidArgument, and changes nothing, for an
  // archive of other parameters or other options (the outer optimizer's factory is not compared); c10::Error for a
  // damaged one, and nothing is to be relied on then.
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

  // Returns the outer parameters, in the order of the constructor's: what to evaluate and to publish. Their memory is
  // this object's.
  std::vector<at::Tensor> outer_parameters() const;
  // Returns the bytes that this rank has sent (ProcessGroup::payload_bytes()): for the exchanges, and for the
  // constructor, which compares options and gives all ranks the parameters of rank 0.
  std::uint64_t payload_bytes() const;

  // SeparateWorkers' functions, which Elastic calls (ddp/separate_workers.h).
  std::shared_ptr<ProcessGroup> exchange_group() const override;
  std::string exchange_identity() const override;
  std::int64_t steps_ended() const override;
  bool looks_before(std::int64_t step) const override;
  std::int64_t boundary_after(std::int64_t step) const override;
  void leave_group() override;
  Meeting meet(bool holds, bool fresh) override;
  void apply_meeting() override;
  void resume() override;
  void settle() override;

 private:
  const std::unique_ptr<internal::DilocoParts> parts_;
};

}  // namespace gradwire
