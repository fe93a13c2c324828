// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Hooks by name: by an enumerator, or by a text from a command line.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "gradwire/ddp/comm_hook.h"
#include "gradwire/ddp/distributed_data_parallel.h"
#include "gradwire/process_group/process_group.h"

namespace gradwire {

// The ten hooks of PyTorch's enumeration of the same name.
enum class DDPCommHookType {
  ALLREDUCE,
  FP16_COMPRESS,
  BF16_COMPRESS,
  QUANTIZE_PER_TENSOR,
  QUANTIZE_PER_CHANNEL,
  POWER_SGD,
  POWER_SGD_RANK2,
  BATCHED_POWER_SGD,
  BATCHED_POWER_SGD_RANK2,
  NOOP,
};

// Returns the enumerator's name in lower case: "allreduce", "fp16_compress", ...
std::string_view name_of(DDPCommHookType type) noexcept;

// Returns the hook of one type with its default options: the PowerSGD hooks start at iteration 1,000. `group`: null for
// the group of the DDP object that the hook is registered with.
std::shared_ptr<CommHook> make_hook(DDPCommHookType type, std::shared_ptr<ProcessGroup> group = nullptr);

// Returns the hook that `spec` describes: a name, then options, as in "fp16_compress" or "power_sgd:rank=4,start=10".
// Spaces around words are ignored. The names are the enumerators in lower case and the names of
// compress::known_compressors() ("int8", "top_k:ratio=0.001,memory=ef21"), and "auto" (auto_hook.h). Compressors also
// take the option vectors=plain (CompressedHookOptions). Every hook takes these options:
//   warm_up=N   plain averaging in iterations before N (policy_hook.h)
//   min=64Ki    plain averaging of buckets with fewer bytes (policy_hook.h)
//   wrap=fp16   or wrap=bf16: the hook works on the bucket cast to that dtype (compress_wrappers.h)
// Over a group of several hosts, a hook that compresses runs between hosts only (between_hosts_hook.h). For an
// unknown name or option, or a value out of range, throws an InvalidArgument. The message for an unknown name lists the
// known names; the message for an unknown option lists the hook's options.
std::shared_ptr<CommHook> make_hook(std::string_view spec, std::shared_ptr<ProcessGroup> group = nullptr);

// One line of a help text.
struct HookInfo {
  std::string_view name;
  std::string_view options;  // the hook's own options with their defaults
  // The bytes that a rank sends for n float32 values among N ranks. For a compressor: the bytes of one encoding; an
  // exchange sends several (compress/exchange.h).
  std::string_view bytes;
  std::string_view paper;  // authors and year; empty: none
};

// Return all hooks, and the names of all hooks: PyTorch's first, then auto, then the compressors.
const std::vector<HookInfo>& known_hooks();
std::vector<std::string> hook_names();

// Registers the hook of `type` with `model`, like PyTorch's function of this name. `state` is the group that the hook
// uses; null for DDP's own group. Throws as DistributedDataParallel::register_comm_hook() does.
template <class Module>
void register_ddp_comm_hook(DDPCommHookType type, DistributedDataParallel<Module>& model,
                            std::shared_ptr<ProcessGroup> state = nullptr) {
  model.register_comm_hook(make_hook(type, std::move(state)));
}

}  // namespace gradwire
