// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// int8, int4, int2: blocks of values share a scale, each value becomes a small integer. (With two bits and
// stochastic rounding this is TernGrad, Wen et al. 2017, by block; with more, QSGD's idea, Alistarh et al. 2017,
// with the largest magnitude as norm.)
//
// Algorithm: L = 2^(b-1) - 1 levels (127, 7, 1). For each block of B values: scale = max|x| / L; code = round(x /
// scale) in [-L, L]; decoding gives code * scale. So an error is at most scale / 2 with rounding to nearest (half
// to even), below scale with stochastic rounding, whose expectation is x (up to f32 rounding).
//
// Bytes: exactly 4 ceil(n / B) + ceil(n b / 8): all scales (f32), then all codes, each plus 2^(b-1), packed from
// the low bits of a byte upwards.
//
// Infinity and NaN: a block with either decodes to NaN throughout. A block whose largest magnitude is below 2^-118
// decodes to zeros: the reciprocal of its scale would overflow.
#pragma once

#include <memory>

#include "gradwire/compress/codec.h"

namespace gradwire::compress {

enum class Rounding { nearest, stochastic };  // to the closest code, or up with the probability of the remainder

struct IntegerOptions {
  std::size_t block = 256;  // values that share a scale; a multiple of 8, from 8 to 2^24
  Rounding rounding = Rounding::nearest;
};

// `bits` is 8, 4 or 2. Throws InvalidArgument for others, and for a wrong block. Named "int8:block=256",
// "int4:block=64,rounding=stochastic".
std::unique_ptr<Codec> make_integer_codec(int bits, const IntegerOptions& options = {});

}  // namespace gradwire::compress
