// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// one_bit: a row's scale is the mean of its magnitudes, in the order of addition of kernels/quantize.h, so that the
// bits are the CPU's: 16 interleaved partial sums, which are then added in halves.
#pragma once

#include "gradwire/hooks/device/cuda/formats_internal.h"

namespace gradwire::cuda {

inline constexpr unsigned kPartialSums = 16;

// Partial sum `which`: of values number which, which + 16, ...
GRADWIRE_HOST_DEVICE inline float partial_sum(const float* values, std::size_t count, unsigned which) {
  float sum = 0;
  for (std::size_t i = which; i < count; i += kPartialSums)
    sum += std::bit_cast<float>(kernels::magnitude_bits_of(values[i]));
  return sum;
}

// The scale is given by the kernel, which adds partial sums.
struct OneBitFormat {
  static constexpr int bits = 1;
  GRADWIRE_HOST_DEVICE std::uint64_t encode(const float (&values)[kGroup], float, std::size_t) const {
    return encode_signs(values);
  }
  GRADWIRE_HOST_DEVICE void decode(std::uint64_t word, float scale, float (&values)[kGroup]) const {
    decode_signs(word, scale, values);
  }
};

}  // namespace gradwire::cuda
