// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The hooks that every test over all hooks runs: another hook is a line.
#pragma once

#include <vector>

#include "gradwire/hooks/compress_wrappers.h"
#include "gradwire/hooks/debugging_hooks.h"
#include "gradwire/hooks/default_hooks.h"
#include "gradwire/hooks/hook_test_support.h"
#include "gradwire/hooks/mixed_precision_hooks.h"
#include "gradwire/hooks/optimizer_overlap_hooks.h"
#include "gradwire/hooks/post_local_sgd_hook.h"
#include "gradwire/hooks/quantization_hooks.h"
#include "gradwire/hooks/registry.h"

namespace gradwire::testing {

// Within a float32 bucket the averages are that of numbers of 8 or 11 bits or of codes of 1/255; gradients of bfloat16
// parameters themselves have 8 bits, so nothing is nearer than 4e-3.
inline std::vector<HookCase> hook_cases() {
  return {
      {"allreduce", [](auto) { return make_allreduce_hook(); }, 4e-3},
      {"allreduce_own_group", [](const auto& group) { return make_allreduce_hook(group); }, 4e-3},
      {"fp16_compress", [](auto) { return make_fp16_compress_hook(); }, 4e-3},
      {"bf16_compress", [](auto) { return make_bf16_compress_hook(); }, 6e-3},
      {"quantize_per_tensor", [](auto) { return make_quantization_pertensor_hook(); }, 7e-3},
      {"quantize_per_channel", [](auto) { return make_quantization_perchannel_hook(); }, 7e-3},
      {"quantize_own_group", [](const auto& group) { return make_quantization_perchannel_hook(group); }, 7e-3},
      {"reduce_in_float64", [](auto) { return make_reduce_in_dtype_hook(at::kDouble); }, 4e-3},
      {"reduce_in_half", [](const auto& group) { return make_reduce_in_dtype_hook(at::kHalf, group); }, 4e-3},
      {"fp16_around_allreduce", [](auto) { return make_fp16_compress_wrapper(make_allreduce_hook()); }, 4e-3},
      {"bf16_around_quantize", [](auto) { return make_bf16_compress_wrapper(make_quantization_pertensor_hook()); },
       1e-2},
      {"logging", [](auto) { return make_logging_hook(make_allreduce_hook(), [](const BucketRecord&) {}); }, 4e-3},
      {"checking", [](auto) { return make_checking_hook(make_quantization_perchannel_hook()); }, 7e-3},
      {"hook_then_step",
       [](auto) {
         return make_hook_then_step(make_allreduce_hook(),
                                    [](const std::string&, at::Tensor p, at::Tensor g) { p.add_(g, -0.1); });
       },
       4e-3},
      {"post_local_sgd_global_phase",
       [](const auto& group) {
         return make_post_local_sgd_hook({.process_group = group, .subgroup = group, .start_iteration = 100});
       },
       4e-3},
      {"post_local_sgd_whole_subgroup",
       [](const auto& group) { return make_post_local_sgd_hook({.subgroup = group, .start_iteration = 2}); }, 4e-3},
      // By name. All values travel, all directions are kept: what is left are types, layouts and rounding.
      {"compressor_fp16", [](auto) { return make_hook("fp16"); }, 4e-3, true},
      {"compressor_bf16", [](auto) { return make_hook("bf16"); }, 6e-3, true},
      {"compressor_fp8", [](auto) { return make_hook("fp8_e4m3"); }, 7e-2, true},
      {"compressor_int8", [](auto) { return make_hook("int8"); }, 9e-3, true},
      {"compressor_int8_ef21", [](auto) { return make_hook("int8:memory=ef21,exchange=all_gather"); }, 9e-3},
      {"compressor_top_k", [](auto) { return make_hook("top_k:ratio=1"); }, 4e-3},
      {"compressor_dgc", [](auto) { return make_hook("dgc:ratio=1,memory=none"); }, 4e-3},
      {"compressor_random_k", [](auto) { return make_hook("random_k:ratio=1"); }, 4e-3, true},
      {"compressor_threshold", [](auto) { return make_hook("threshold:threshold=0.0001"); }, 4e-3},
      {"compressor_plain_vectors", [](auto) { return make_hook("int8:vectors=plain"); }, 9e-3, true},
      {"power_sgd", [](auto) { return make_hook("power_sgd:rank=12,start=2,min_rate=0"); }, 4e-3},
      {"batched_power_sgd", [](auto) { return make_hook("batched_power_sgd:rank=27,start=2"); }, 4e-3},
  };
}

}  // namespace gradwire::testing
