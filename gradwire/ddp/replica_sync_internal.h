// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Makes sure that all ranks hold the same module: compares its shape, copies its values.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "gradwire/process_group/process_group.h"

namespace gradwire::internal {

struct NamedTensor {
  std::string name;
  at::Tensor tensor;
  bool sparse = false;  // its gradients are
};

// A setting that must be the same on all ranks; at most 9.
struct NamedSetting {
  std::string name;
  std::int64_t value = 0;
};

// Collective: compares count, dtype, sizes, strides and need of a gradient of `parameters`, and `settings`, with those
// of rank 0. Throws MismatchError on all ranks when any rank differs; it names the first parameter that does and what
// the ranks have. Uses all_gather and broadcast only.
void verify_replicas(ProcessGroup& group, const std::vector<NamedTensor>& parameters,
                     const std::vector<NamedSetting>& settings);

inline constexpr std::size_t kBroadcastChunkBytes = std::size_t{250} << 20;

// Collective: the values of `tensors` on rank `root` go to all ranks. Many small tensors travel as one message of at
// most `chunk_bytes` (one larger tensor alone travels by itself). All ranks pass tensors of the same sizes and dtypes.
void broadcast_values(ProcessGroup& group, const std::vector<at::Tensor>& tensors, int root = 0,
                      std::size_t chunk_bytes = kBroadcastChunkBytes);

// Collective: the numbers of every rank, by rank; all pass as many.
std::vector<std::vector<std::int64_t>> gather_integers(ProcessGroup& group, std::vector<std::int64_t> values);

// Collective: rank 0's `values` on all ranks; all pass the same number of them.
std::vector<std::int64_t> broadcast_integers(ProcessGroup& group, std::vector<std::int64_t> values);

}  // namespace gradwire::internal
