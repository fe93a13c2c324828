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

// PyTorch's ten.
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

// The hook of one type, with its default options; the PowerSGD ones start at iteration 1,000. `group` null: the group
// of the DDP that it is registered with.
std::shared_ptr<CommHook> make_hook(DDPCommHookType type, std::shared_ptr<ProcessGroup> group = nullptr);

// The hook that `spec` describes: a name, then options, as in "fp16_compress" or "power_sgd:rank=4,start=10"; spaces
// around words do not matter. Names are those of the enumerators in lower case and of compress::known_compressors()
// ("int8", "top_k:ratio=0.001,memory=ef21"), which also take vectors=plain (CompressedHookOptions). Every hook takes
//   warm_up=N   plain averaging in iterations before N     min=64Ki   buckets of fewer bytes are averaged plainly
//   wrap=fp16   or bf16: the hook works on the bucket cast to that type (compress_wrappers.h)
// Throws InvalidArgument that lists the right names, or the options of the hook.
std::shared_ptr<CommHook> make_hook(std::string_view spec, std::shared_ptr<ProcessGroup> group = nullptr);

// One line of a help text.
struct HookInfo {
  std::string_view name;
  std::string_view options;  // with their defaults, beside those that every hook takes
  // The bytes that a rank sends for n float32 values among N ranks; of a compressor: those of one encoding, see
  // compress/exchange.h for what exchanges make of it.
  std::string_view bytes;
  std::string_view paper;
};

// All hooks, in the order of the documentation; and their names.
const std::vector<HookInfo>& known_hooks();
std::vector<std::string> hook_names();

// Registers the hook of `type` with `model`, like PyTorch's function of this name. `state` is the group to use, null
// for DDP's own.
template <class Module>
void register_ddp_comm_hook(DDPCommHookType type, DistributedDataParallel<Module>& model,
                            std::shared_ptr<ProcessGroup> state = nullptr) {
  model.register_comm_hook(make_hook(type, std::move(state)));
}

}  // namespace gradwire
