// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The parts of a DdpCore.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gradwire/base/mutex.h"
#include "gradwire/ddp/delayed_reduction_internal.h"
#include "gradwire/ddp/distributed_data_parallel.h"
#include "gradwire/ddp/low_precision_internal.h"
#include "gradwire/ddp/module_tensors_internal.h"
#include "gradwire/ddp/reducer_internal.h"
#include "gradwire/ddp/shadow_gradients_internal.h"
#include "gradwire/ddp/unfinished_passes_internal.h"

namespace gradwire {

struct DdpCore::Parts {
  // The kind of a forward pass. The same on all active ranks.
  struct Forward {
    bool synchronized = false;  // a backward pass with a reduction follows
    bool buffers = false;       // buffers are broadcast before the forward
    bool buffers_due = false;   // Parts::buffers_due after it
  };

  std::shared_ptr<torch::nn::Module> module;
  std::string module_name;  // Module::name() may write at its first call, so threads must not ask it
  DdpOptions options;
  std::shared_ptr<ProcessGroup> group;
  std::optional<at::Device> device;
  std::vector<internal::NamedTensor> frozen;   // parameters that needed no gradient when the module was wrapped
  std::vector<at::Tensor> parameters;          // without the ignored ones
  std::vector<internal::NamedTensor> trained;  // the parameters whose gradients the Reducer averages
  std::vector<internal::NamedTensor> delayed;  // the parameters whose gradients the DelayedReduction averages
  internal::ReducerOptions tuned;              // its options
  internal::TensorIdentities parameters_seen;
  std::vector<at::Tensor> buffers;  // the module's present buffers, without the ignored ones
  internal::TensorIdentities buffers_seen;
  bool buffers_given = false;  // true: set_buffers() gave the buffers, and the module's own are not used
  std::shared_ptr<internal::Reducer> reducer;        // null between leave_group() and enter_group()
  std::optional<internal::PassRegistration> passes;  // of the Reducer
  mutable Mutex asked_mutex;
  std::shared_ptr<internal::Reducer> asked GRADWIRE_GUARDED_BY(asked_mutex);  // the same, for questions of any thread
  std::shared_ptr<CommHook> hook;                                             // the user's; null: plain averaging
  std::shared_ptr<internal::LowPrecision> low_precision;                      // null: no mixed precision
  std::shared_ptr<internal::DelayedReduction> delayed_reduction;              // null: no delayed gradients
  std::unique_ptr<internal::ShadowGradients> shadow_gradients;
  bool sync = true;
  // As in PyTorch: buffers are broadcast when the training forward before was synchronized. So the first forward under
  // no_sync() broadcasts them, and the first one after it does not.
  bool buffers_due = true;
  bool synchronized_forward = false;         // between before_forward() and after_forward()
  std::atomic<bool> buffers_travel{true};    // buffers are broadcast before training forwards
  std::atomic<bool> joined_ever{false};      // the object has been in a Join
  bool divide_by_initial_world_size = true;  // the option of the Join
  // The number of the iteration that this rank's last synchronized forward began in a Join; while a forward begins,
  // that of this forward, which may be a local one. Not given: none.
  std::optional<std::uint32_t> begun_in_join;
  bool has_disagreed = false;        // agree() has thrown its error, on all ranks
  std::vector<bool> has_taken_part;  // by rank: the rank was active in a synchronized iteration

  // The tensors that replicas have in common: the parameters, and the buffers when `with_buffers` is true.
  std::vector<at::Tensor> state(bool with_buffers) const;
  // The Reducer. Throws InvalidArgument between leave_group() and enter_group().
  internal::Reducer& in_group() const;
  // The same, for any thread.
  std::shared_ptr<internal::Reducer> in_group_for_question() const;
  std::shared_ptr<internal::Reducer> reducer_if_any() const;
  void set_reducer(std::shared_ptr<internal::Reducer> next);
  // Makes the Reducer and what else belongs to the ranks that the group has now. Not collective.
  void make_reducer();
  // Compares the modules and the options of all ranks, gives all modules rank 0's values, and makes the memory of the
  // buckets. `named`: the parameters, without the ignored ones. Collective. Throws MismatchError on all ranks that
  // differ.
  void begin_alike(const std::vector<internal::NamedTensor>& named);
  // Makes the duplicates of the group, at the first call. Collective.
  void start();
  // In a Join: exchanges the kinds of forward of all ranks and returns the kind of the active ranks. `mine` is null on
  // a rank that has joined. Collective. Throws MismatchError when the active ranks differ.
  Forward agree(const Forward* mine, const JoinRound& round);
  // Whether a rank takes part with data for the first time.
  bool has_new_rank(const JoinRound* round);
  // The divisor of sums in `round` (null: no Join).
  int divisor(const JoinRound* round) const;
  // Starts the Reducer's iteration and broadcasts the buffers, as `forward` says. Collective when there is something to
  // do.
  void begin_forward(const Forward& forward, const JoinRound* round);
  // Throws InvalidArgument after destroy_process_group().
  void require_open_group() const;
  // Throws InvalidArgument when a parameter needs a gradient now, but did not, or did not exist, when the module was
  // wrapped: its gradient would not be averaged.
  void require_known_parameters();
  // Uses the buffers that the module has now.
  void follow_buffers();
  // Uses these buffers, cast to MixedPrecision::buffer_dtype.
  void use_buffers(const std::vector<internal::NamedTensor>& named);
  // Throws InvalidArgument while the parameters have a lower precision. `what` names the refused call.
  void require_full_precision(const char* what) const;
};

}  // namespace gradwire
