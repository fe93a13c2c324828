// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// 1 bit with scale: the signs, and one magnitude for each block (EF-signSGD, Karimireddy et al. 2019; 1-bit SGD,
// Seide et al. 2014). Meant to be used with error feedback: alone it does not converge to the right place.
//
// Algorithm: for each block of B values: scale = sum|x| / B (over the values there are); decoding gives scale with
// x's sign. The sign of -0 is negative.
//
// Bytes: exactly 4 ceil(n / B) + ceil(n / 8): all scales (f32), then all signs, 1 for negative, from the low bit of
// a byte upwards.
//
// Infinity and NaN: a block with either decodes to infinities or NaN throughout. So does one whose sum overflows
// f32.
#pragma once

#include <memory>

#include "gradwire/compress/codec.h"

namespace gradwire::compress {

struct OneBitOptions {
  std::size_t block = 4096;  // values that share a scale; a multiple of 8, from 8 to 2^24
};

// Throws InvalidArgument for a wrong block. Named "one_bit:block=4096".
std::unique_ptr<Codec> make_one_bit_codec(const OneBitOptions& options = {});

}  // namespace gradwire::compress
