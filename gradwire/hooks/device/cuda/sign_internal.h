// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// sign: a mark (1 where a value is not finite, 2 where all are zero, else 0), then a bit a value.
#pragma once

#include "gradwire/hooks/device/cuda/formats_internal.h"

namespace gradwire::cuda {

// Packs the signs of group `group`; returns whether its values are finite.
GRADWIRE_HOST_DEVICE inline bool encode_sign_group(const float* values, std::size_t count, std::uint8_t* bytes,
                                                   std::size_t group) {
  const std::size_t first = kGroup * group;
  const unsigned size = group_size(first, count);
  float loaded[kGroup];
  load_group(values + first, size, loaded);
  store_codes(bytes + 1 + group, size, 1, encode_signs(loaded));
  bool finite = true;
  for (unsigned i = 0; i < kGroup; ++i) finite = finite && kernels::is_finite(loaded[i]);
  return finite;
}

GRADWIRE_HOST_DEVICE inline void decode_sign_group(const std::uint8_t* bytes, std::size_t count, const float* sum,
                                                   float* values, std::size_t group) {
  const std::size_t first = kGroup * group;
  const unsigned size = group_size(first, count);
  float decoded[kGroup];
  decode_signs(bytes[1 + group], 1.0f, decoded);
  if (bytes[0] != 0) {
    for (float& value : decoded) value = bytes[0] == 2 ? 0.0f : std::numeric_limits<float>::quiet_NaN();
  }
  store_decoded(sum, first, size, decoded, values);
}

}  // namespace gradwire::cuda
