// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Hooks by name: as an enumerator, or as the text that a command line gives.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "gradwire/ddp/comm_hook.h"
#include "gradwire/ddp/distributed_data_parallel.h"
#include "gradwire/process_group/process_group.h"

namespace gradwire {

// PyTorch's ten. Those that this version does not have yet throw UnsupportedError when they are asked for.
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

// "allreduce", "fp16_compress", ...
std::string_view name_of(DDPCommHookType type) noexcept;

// The hook of one type. `group` null: the group of the DDP that it is registered with. Throws UnsupportedError.
std::shared_ptr<CommHook> make_hook(DDPCommHookType type, std::shared_ptr<ProcessGroup> group = nullptr);

// The hook that `spec` describes: a name, then options, as in "fp16_compress" or "power_sgd:rank=4,start=10"; spaces
// around words do not matter. Throws InvalidArgument that lists the right names, or the options of the hook;
// UnsupportedError for a hook of a later version.
std::shared_ptr<CommHook> make_hook(std::string_view spec, std::shared_ptr<ProcessGroup> group = nullptr);

// The names that make_hook() knows and can make.
std::vector<std::string> hook_names();

// Registers the hook of `type` with `model`, like PyTorch's function of this name. `state` is the group to use, null
// for DDP's own.
template <class Module>
void register_ddp_comm_hook(DDPCommHookType type, DistributedDataParallel<Module>& model,
                            std::shared_ptr<ProcessGroup> state = nullptr) {
  model.register_comm_hook(make_hook(type, std::move(state)));
}

}  // namespace gradwire
