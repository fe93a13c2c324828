// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Training that goes on when ranks die, leave and come.
//
//   gradwire::Elastic elastic;                                // under gradwire-run --elastic MIN:MAX
//   auto net = Net();
//   gradwire::DistributedDataParallel ddp(net, {.process_group = elastic.group()});
//   torch::optim::SGD optimizer(ddp.parameters(), 0.1);
//   elastic.add(ddp).add(optimizer);
//   elastic.run(1000, [&](const gradwire::ElasticStep& at) {
//     auto [x, target] = samples(at.step, at.rank, at.size);  // depends on these three numbers alone
//     optimizer.zero_grad();
//     loss_of(ddp(x), target).backward();
//     optimizer.step();                                       // the last thing that a step does
//   });
//
// docs/elastic.md has the promises and their limits.
#pragma once

#include <torch/optim/optimizer.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "gradwire/amp/grad_scaler.h"
#include "gradwire/base/deadline.h"
#include "gradwire/ddp/distributed_data_parallel.h"
#include "gradwire/ddp/sharded_state.h"
#include "gradwire/elastic/elastic_group.h"
#include "gradwire/elastic/state_part.h"
#include "gradwire/membership/slow_ranks.h"
#include "gradwire/store/store.h"

namespace gradwire {

// The place of a call of the step function.
struct ElasticStep {
  std::int64_t step = 0;   // counts from 0; each step counts once in the whole job
  int rank = 0;            // of this member in the present epoch
  int size = 1;            // the number of members in the present epoch
  std::int64_t epoch = 0;  // the number of the present epoch, from 1
  // This member is a newcomer that follows the others (ElasticOptions::follow): `rank` is that of the member whose
  // results it takes over. Compute, but write and print nothing.
  bool follows = false;
};

// A member that is slow (SlowRule). Times are means over SlowRule::steps steps.
struct SlowMember {
  int rank = 0;               // of the member in the present epoch
  std::string host;           // the name of its host
  std::int64_t step = 0;      // the last of the steps
  double own_seconds = 0;     // the member's own time of a step
  double others_seconds = 0;  // the median of the others' own times
};

struct ElasticOptions {
  // Where members and coordinator meet; its keys are the job's alone. Null: the store that gradwire-run --elastic
  // names in the environment.
  std::shared_ptr<Store> store;
  // The backend of each epoch's group, as in make_process_group(). Empty: shm while one launcher started all members of
  // the epoch, hybrid otherwise. Not nccl.
  std::string backend;
  // Given: torch's default generator of random numbers is seeded before each step with a number that depends on this
  // seed, the step and the rank alone, so a step that is done again draws the same numbers.
  std::optional<std::uint64_t> seed = std::nullopt;
  // SIGTERM makes this member leave in good order after the step under way. Only one Elastic of a process may run with
  // this.
  bool leave_on_sigterm = true;
  // How long a member that leaves waits for another epoch, when it could not hand over what its hooks owe, or, where
  // all members leave, the job's state. Once a rank has failed, gradwire-run kills what is there a second after SIGTERM
  // (--grace).
  Milliseconds hand_over_patience = Milliseconds(500);
  // Text that all members must have in common besides the model, for example the program's arguments.
  std::string program;
  // True: each step begins with a copy of the parameters, the optimizers and the states of add_state(), and a step that
  // breaks brings them back. So a step may change the state at any point, not only in its last act: for example in
  // several steps of an optimizer, as in a Join over many batches (ddp/join.h). Costs the memory of the state, and the
  // copy in each step, with a call of each `save`. A ZeroRedundancyOptimizer keeps its own part by itself, either way.
  // Not for members that train separately.
  bool copy_before_step = false;
  // Optimizers that share their state out among the ranks (ZeroRedundancyOptimizer). True: each member also holds a
  // copy of the part of the member before it, so that the part of a member that dies is not lost. The same on all
  // members.
  bool shard_copies = true;
  // The file of a checkpoint of such an optimizer (torch::save(optimizer, path), after consolidate_state()), from which
  // parts come that no member holds any more. Empty or not there: such parts begin anew. A log line says which.
  std::string shard_checkpoint;
  // When a member is slow, and whether it is dropped then: it leaves in good order, and its run() returns
  // ElasticEnd::dropped. The same on all members; gradwire-run --drop-slow takes its place. A member's own time of a
  // step is that of the step function without the calls on groups, the waits for Works and the wait for DDP's buckets.
  // On a device, the time that DDP's end of the backward pass waits for this member's own device counts as its own, and
  // so do calls on groups within the backward pass (SyncBatchNorm). Nothing: no member is slow. Members that train
  // separately are not compared. Else the members exchange their times every 10 steps, or more often for fewer steps.
  std::optional<SlowRule> slow = SlowRule();
  // Called on every member, between two steps, when a member is slow. The coordinator says it too.
  std::function<void(const SlowMember&)> on_slow = nullptr;
  // A newcomer follows the members while they train, and they stop for it only when it is as far as they are: it gets
  // the state in the background, and then does the steps that they have done since, with the results of their
  // collectives. So step() is called on it with ElasticStep::follows, also some times before it has the state. False,
  // and in jobs with members that train separately, with optimizers that share their state out, with one member
  // only, with a step that sends messages to single ranks, or with another call in it that the newcomer cannot repeat:
  // the members wait while the state is on its way. The same on all members. Costs one
  // look into the store at each step.
  bool follow = false;
  // How long a member waits for the next epoch, for the others there, for a collective, and for the job's store over
  // TCP when its server is gone: gradwire-run --serve can be started again meanwhile.
  Milliseconds timeout = kDefaultTimeout;
};

// How run() ended.
enum class ElasticEnd {
  finished,  // all steps were counted; the registered objects hold the state after the last one
  left,      // this member left, on leave() or SIGTERM
  dropped,   // this member was slow and left (SlowRule::drop), or it and another member do not reach each other
  too_late,  // the job finished before this member took part
};

// One member of an elastic job. run() is called once, after everything was added. One thread uses the object, except
// for leave().
class Elastic final {
 public:
  // Does not communicate. Throws InvalidArgument when no store is given and gradwire-run --elastic did not start this
  // process, and for a SlowRule that makes no sense; UnsupportedError for the backend nccl; StoreError when the store
  // cannot be opened.
  explicit Elastic(ElasticOptions options = {});
  ~Elastic();
  Elastic(const Elastic&) = delete;
  Elastic& operator=(const Elastic&) = delete;

  // The group of the present epoch; before run() a group of this rank alone. Make DistributedDataParallel over it.
  const std::shared_ptr<ElasticGroup>& group() const noexcept;

  // Adds an object to the state of the job: what a step reads and changes, besides its gradients. All members add the
  // same objects in the same order, before run(). The objects outlive run(). A DistributedDataParallel brings its
  // module and its hook along; its process_group must be group(). `save` returns bytes, and `load` takes over bytes
  // that `save` returned on another member. An optimizer that shares its state out (ZeroRedundancyOptimizer) is made
  // over group() too; its parts are dealt anew in each epoch. A PostLocalSGDOptimizer with a DilocoAverager over
  // group() makes members that train separately (docs/elastic.md): it takes the place of the DistributedDataParallel,
  // and brings its parameters along, but no buffers. Throws InvalidArgument for another group, for an object that was
  // added before, after run() was called, and for members that train together and separately at once; UnsupportedError
  // for ZeroOptions::overlap_with_ddp.
  Elastic& add(DdpCore& core);
  template <class Module>
  Elastic& add(DistributedDataParallel<Module>& ddp) {
    return add(ddp.core());
  }
  Elastic& add(torch::optim::Optimizer& optimizer);
  // Its scale travels, and a step that is done again begins with a scaler that has unscaled nothing.
  Elastic& add(GradScaler& scaler);
  Elastic& add_state(std::string name, std::function<std::string()> save, std::function<void(const std::string&)> load);
  // The same for a state that is large: its tensors may be the object's own, and must not change before the next step.
  // `load` gets tensors on the CPU, and may keep them. For a newcomer that follows, `save` is called at two boundaries:
  // first for the sizes. run() throws UnsupportedError for undefined, sparse and quantized tensors and for those on
  // 'meta'.
  Elastic& add_state(std::string name, std::function<StatePart()> save, std::function<void(StatePart)> load);
  // The same for any other state of which each rank holds a part.
  Elastic& add_shards(ShardedState& state);

  // Calls step() for each step from 0 to steps - 1 that this member takes part in, and returns when `steps` steps were
  // counted, or as ElasticEnd says. A member that joins later begins with the step at which the job is then.
  //
  // A step counts when step() returns. When it throws PeerError, TimeoutError or AbortedError, the members that are
  // left meet in a new epoch. There, members that have not counted the step take the state of members that have; when
  // no member has, all do the step again. For that, step() changes the registered state in its last act only (the
  // optimizer's step), after all communication but that of a ZeroRedundancyOptimizer, which can take its step back; or
  // anywhere, with ElasticOptions::copy_before_step.
  // Buffers and hooks are brought back, and gradients are removed, before a step is done again.
  //
  // Members that train separately call the optimizer's step() once, as the last thing in step(). Steps between two
  // exchanges are each member's own, so members may be at other steps. A step whose exchange failed has ended: the next
  // epoch does the exchange, and step() is not called for that step again. A member that comes begins with the number
  // of the member that gives it the outer state.
  //
  // Throws InvalidArgument for members that train separately with ElasticOptions::copy_before_step.
  // Throws what step() and ElasticOptions::on_slow throw otherwise: the other members then go on without this one.
  // Throws MismatchError when the job runs another program, model or version of gradwire, and when members that counted
  // the same steps hold different parameters; PeerError when no member that holds the state is left, and when the job
  // went on without this member; TimeoutError when there is no coordinator, or are too few members, for `timeout`, and
  // longer where the coordinator itself waits for a member that hangs; StoreError when the job's store was gone for
  // `timeout`.
  ElasticEnd run(std::int64_t steps, const std::function<void(const ElasticStep&)>& step);

  // Makes this member leave in good order: at a step boundary, or within 250 ms while run() waits for an epoch. A
  // member that could not hand over what its hooks owe, or the job's state where all members leave, takes part in one
  // more epoch when there is one within ElasticOptions::hand_over_patience. Any thread may call it, before run() too.
  void leave() noexcept;

  // The number of steps that the job has counted, as far as this member knows.
  std::int64_t counted() const noexcept;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace gradwire
