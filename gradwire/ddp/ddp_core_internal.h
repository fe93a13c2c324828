// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// What a DdpCore is made of.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gradwire/ddp/delayed_reduction_internal.h"
#include "gradwire/ddp/distributed_data_parallel.h"
#include "gradwire/ddp/low_precision_internal.h"
#include "gradwire/ddp/module_tensors_internal.h"
#include "gradwire/ddp/reducer_internal.h"
#include "gradwire/ddp/shadow_gradients_internal.h"

namespace gradwire {

struct DdpCore::Parts {
  // What a forward pass communicates before it computes. The same on all ranks that take part with data.
  struct Forward {
    bool synchronized = false;  // a backward pass with a reduction follows
    bool buffers = false;       // buffers travel
  };

  std::shared_ptr<torch::nn::Module> module;
  DdpOptions options;
  std::shared_ptr<ProcessGroup> group;
  std::optional<at::Device> device;
  std::vector<internal::NamedTensor> frozen;  // parameters that needed no gradient when the module was wrapped
  std::vector<at::Tensor> parameters;         // but those that are ignored
  internal::TensorIdentities parameters_seen;
  std::vector<at::Tensor> buffers;  // but those that are ignored; as the module had them last
  internal::TensorIdentities buffers_seen;
  bool buffers_given = false;  // by set_buffers(): the module's own are not asked for
  std::shared_ptr<internal::Reducer> reducer;
  std::shared_ptr<internal::LowPrecision> low_precision;          // null: none
  std::shared_ptr<internal::DelayedReduction> delayed_reduction;  // null: none
  std::unique_ptr<internal::ShadowGradients> shadow_gradients;
  bool sync = true;
  // As in PyTorch: buffers travel when the training forward before was synchronized, so the first one after no_sync()
  // skips them.
  bool buffers_due = true;
  bool synchronized_forward = false;  // between before_forward() and after_forward()
  int forward_divisor = 1;            // what its sums are divided by
  bool joined_ever = false;
  bool divide_by_initial_world_size = true;  // of the Join
  std::vector<bool> has_taken_part;          // by rank, with data, in a synchronized iteration

  bool buffers_travel() const { return options.forward_sync_buffers.value_or(options.broadcast_buffers); }
  // Parameters, and buffers where `with_buffers`: what replicas have in common.
  std::vector<at::Tensor> state(bool with_buffers) const;
  // Collective, once: the groups.
  void start();
  // Collective, in a Join: `mine`, null on a rank that has joined, and what the active ranks do. Throws MismatchError
  // when they do not agree.
  Forward agree(const Forward* mine, const JoinRound& round);
  // Whether a rank takes part for the first time.
  bool has_new_rank(const JoinRound* round);
  // What sums are divided by in `round` (null: no Join).
  int divisor(const JoinRound* round) const;
  // Collective where they are due.
  void begin_forward(const Forward& forward, const JoinRound* round);
  // Throws InvalidArgument after destroy_process_group().
  void require_open_group() const;
  // Throws InvalidArgument when a parameter needs a gradient that did not when the module was wrapped, or was not
  // there: nobody would average it.
  void require_known_parameters();
  // Takes over the buffers that the module has now.
  void follow_buffers();
  void use_buffers(const std::vector<internal::NamedTensor>& named);
  // Throws InvalidArgument while parameters are of a lower precision.
  void require_full_precision(const char* what) const;
};

}  // namespace gradwire
