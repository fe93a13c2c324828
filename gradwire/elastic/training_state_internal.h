// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The state of a training job on one member: everything that a step reads and changes.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "gradwire/ddp/comm_hook.h"
#include "gradwire/ddp/distributed_data_parallel.h"
#include "gradwire/ddp/kept_hook_state.h"
#include "gradwire/ddp/separate_workers.h"
#include "gradwire/ddp/sharded_state.h"
#include "gradwire/elastic/parameter_watch_internal.h"
#include "gradwire/elastic/shard_exchange_internal.h"
#include "gradwire/elastic/state_copy_internal.h"
#include "gradwire/elastic/state_part.h"

namespace gradwire::internal {

// A part of the state that the user saves and loads.
struct UserState {
  std::string name;
  std::function<StatePart()> save;
  std::function<void(StatePart)> load;
  bool has_tensors = false;                    // most of it is in tensors, so that save() costs little
  std::function<void()> begin_step = nullptr;  // called before each step, also one that is done again
  const void* object = nullptr;                // that was added; null where only functions were
};

// A hash of the bits of tensors on any devices.
std::int64_t hash_of_bits(const std::vector<at::Tensor>& tensors);

// State of which each member holds a part.
struct AddedShards {
  ShardedState* state = nullptr;
  ShardOptions options = {};
  KeptEntries kept = {};
};

// The optimizer of members that train separately.
struct AddedWorkers {
  torch::optim::Optimizer* optimizer = nullptr;
  SeparateOptimizer* options = nullptr;  // the same object
  SeparateWorkers* workers = nullptr;
};

// Not thread-safe. The added objects outlive this one. Their tensors are on any device; what goes to other members is
// on the CPU.
class TrainingState {
 public:
  void add(DdpCore& core);
  void add(torch::optim::Optimizer& optimizer);
  void add(UserState state);
  void add(AddedShards shards);
  void add(const AddedWorkers& workers) { workers_ = workers; }
  // Null where the members do not train separately.
  SeparateWorkers* separate_workers() const noexcept { return workers_.workers; }
  const std::vector<DdpCore*>& cores() const noexcept { return cores_; }
  const std::vector<torch::optim::Optimizer*>& optimizers() const noexcept { return optimizers_; }
  std::vector<AddedShards>& shards() noexcept { return shards_; }
  const std::vector<AddedShards>& shards() const noexcept { return shards_; }
  const std::vector<UserState>& user_states() const noexcept { return user_states_; }

  // The names, sizes and dtypes of all parameters and buffers, the hooks and the numbers of the other objects, as text
  // that fits on a line: equal on members that can take over each other's state.
  std::string description() const;
  // The same in full, without the hooks: a line for each parameter, buffer and option of DDP.
  std::string details() const;
  // The parameters and buffers of all modules, each tensor once.
  std::vector<at::Tensor> tensors() const;
  // Waits for all streams of the devices on which the state is: a step may have left work on streams of the user's.
  void wait_for_devices() const;
  // A hash of the bits of tensors().
  std::int64_t hash() const { return hashes().all; }
  // The same, and one of the parameters alone. Buffers may differ between members: batch normalization follows each
  // rank's own samples, until the next forward pass brings the buffers of rank 0.
  struct Hashes {
    std::int64_t all = 0;
    std::int64_t parameters = 0;
  };
  Hashes hashes() const;

  // Keeps what a step changes before its gradients are averaged: the buffers of the modules and the state of the hooks.
  // With `all`, also the parameters, the optimizers and the user's states. A sharded state keeps what it changes by
  // itself.
  void begin_step(bool all);
  // Brings back what begin_step() kept, and removes the gradients. Returns false when the step has changed a parameter,
  // and nothing brought it back: then the state is neither that before the step nor that after it.
  bool undo_step();

  // The step has counted, so nothing of before it is needed any more.
  void step_has_counted();

  // What is not in tensors() and the same on all members: optimizers, the user's states, and the common part of
  // sharded states. Of an optimizer of separate members the options alone. A part for each object. The tensors are on
  // the CPU; those of objects on the CPU are the objects' own, which the next step changes.
  std::vector<StatePart> save_rest() const;
  // The tensors in tensors() and save_rest(), without those of user states that are mostly text.
  std::vector<at::Tensor> all_tensors() const;
  // How many parts save_rest() returns, on every member.
  std::size_t rest_parts() const noexcept;
  // Takes over what save_rest() of another member returned.
  void load_rest(std::vector<ArrivedPart> parts);
  // The hooks' shared parts.
  std::string save_shared() const;
  // Takes over what save_shared() of another member returned. The hooks' local parts do not change.
  void load_shared(const std::string& bytes);
  // Whether this member's hooks have what they remember of an iteration over `group` (ddp/first_rank_memory.h).
  bool has_memory(const ProcessGroup& group) const;
  // The hooks' local parts; empty when no hook has any.
  std::string save_local() const;
  // Replaces the hooks' local parts by the averages of `parts` (save_local() of all members that hold the job's state),
  // as hook_state.h says for another number of ranks.
  void average_local_parts(const std::vector<std::string>& parts);

  // The order of the buckets of all modules that are known, as text for another member's keep_bucket_orders(). An order
  // stays known while one rank trains alone, which finds none.
  std::string bucket_orders() const;
  void keep_bucket_orders(const std::string& text);
  // leave_group() and enter_group() of all modules. leave_group() may be called again, and is that of SeparateWorkers
  // too, which enter the next group by exchange_separate_state().
  void leave_group();
  void enter_group();

 private:
  struct Details {
    std::string shapes;    // of parameters and buffers
    std::string settings;  // DDP's options, and which parameters are frozen
  };
  Details in_detail() const;
  std::vector<HookState> hook_states() const;
  std::vector<at::Tensor> parameters() const;

  std::vector<DdpCore*> cores_;
  std::vector<torch::optim::Optimizer*> optimizers_;
  std::vector<UserState> user_states_;
  std::vector<AddedShards> shards_;
  AddedWorkers workers_;
  std::vector<std::vector<std::string>> orders_;  // by core; empty: not known
  std::size_t in_group_ = 0;                      // the first so many cores are in their group

  std::optional<StateCopy> kept_all_;  // given to begin_step()
  std::vector<at::Tensor> kept_buffers_;
  std::vector<KeptHookState> kept_hook_states_;  // by core
  ParameterWatch parameters_at_beginning_;
};

}  // namespace gradwire::internal
