// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// fp8_e4m3, fp8_e5m2. The memory-bound times are those of rows.cuh, with 8 bits: a value moves 5 bytes.
#include "gradwire/hooks/device/cuda/rows.cuh"

namespace gradwire::cuda {

int encode_fp8(const Fp8Format& format, Rows rows, const float* values, std::uint8_t* bytes, Stream stream) {
  return launch_encode(format, rows, values, bytes, stream);
}

int decode_fp8(const Fp8Format& format, Rows rows, const std::uint8_t* bytes, const float* sum, float* values,
               Stream stream) {
  return launch_decode(format, rows, bytes, sum, values, stream);
}

}  // namespace gradwire::cuda
