// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The time that a call takes over a link of so many bytes a second, for tests whose clocks do not move by themselves.
#pragma once

#include <algorithm>

#include "gradwire/process_group/group_call.h"

namespace gradwire::testing {

// Seconds: for the bytes of the largest tensor, twice for an all-reduce, without the part that remains on the rank; and
// what a codec takes for 1 MiB, by the number of calls that it makes: one for bfloat16, two for int8.
inline double seconds_on_link(const GroupCall& call, int world, double bytes_per_second) {
  double bytes = 0;
  bool is_encoded = false;
  for_each_tensor(call, [&](const at::Tensor& tensor) {
    bytes = std::max(bytes, static_cast<double>(tensor.nbytes()));
    is_encoded = is_encoded || tensor.scalar_type() == at::kBFloat16 || tensor.scalar_type() == at::kByte;
  });
  bytes *= (std::holds_alternative<AllReduceCall>(call) ? 2.0 : 1.0) * (world - 1) / world;
  return bytes / bytes_per_second + (is_encoded ? 0.002 : 0);
}

}  // namespace gradwire::testing
