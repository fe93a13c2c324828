// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// int8, int4, int2. The memory-bound times are those of rows.cuh, with bits = 8, 4 or 2: a value of int8 moves 5 bytes,
// of int4 4.5, of int2 4.25, and 4 for every block for the scale.
#include "gradwire/hooks/device/cuda/rows.cuh"

namespace gradwire::cuda {

int encode_integer(const IntegerFormat& format, Rows rows, const float* values, std::uint8_t* bytes, Stream stream) {
  return launch_encode(format, rows, values, bytes, stream);
}

int decode_integer(const IntegerFormat& format, Rows rows, const std::uint8_t* bytes, const float* sum, float* values,
                   Stream stream) {
  return launch_decode(format, rows, bytes, sum, values, stream);
}

}  // namespace gradwire::cuda
