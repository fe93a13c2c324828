// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// fp8 with scale: blocks share a power of two, each value becomes an 8-bit float (Micikevicius et al. 2022, "FP8
// formats for deep learning"): e4m3 (no infinities, largest 448, 4 significant bits) or e5m2 (IEEE-like, largest
// 57344, 3 significant bits).
//
// Algorithm: for each block of B values: scale = the least power of two with max|x| / scale <= the format's largest
// number, kept from 2^-126 to 2^127; code = round(x / scale), to nearest even; decoding gives code * scale. Scaling
// by a power of two is exact, so the error is that of the format: 2^-4 (e4m3) or 2^-3 (e5m2) of a value,
// relatively, down to its denormals.
//
// Bytes: exactly 4 ceil(n / B) + n: all scales (f32), then all codes.
//
// Infinity and NaN: NaN stays; infinity stays in e5m2 and becomes NaN in e4m3. The scale is that of the block's
// finite values. Blocks whose largest magnitude is below the format's smallest number times 2^-126 decode to zeros.
// Values that round up to 2^128 (within 2^-5 or 2^-4, relatively, of the largest f32) decode to infinity.
#pragma once

#include <memory>

#include "gradwire/compress/codec.h"

namespace gradwire::compress {

enum class Fp8Format { e4m3, e5m2 };  // 4 bits of exponent and 3 of mantissa, or 5 and 2

struct Fp8Options {
  std::size_t block = 1024;  // values that share a scale; from 1 to 2^24
};

// Throws InvalidArgument for a wrong block. Named "fp8_e4m3:block=1024", "fp8_e5m2:block=1024".
std::unique_ptr<Codec> make_fp8_codec(Fp8Format format, const Fp8Options& options = {});

}  // namespace gradwire::compress
