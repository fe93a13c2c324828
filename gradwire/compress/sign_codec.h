// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Bare signs: +1 or -1 for each value, without a scale (signSGD, Bernstein et al. 2018). Through the all_reduce
// exchange the second encoding is the majority vote; ties are +1. The learning rate sets the size of steps.
//
// Algorithm: the sign bit: 0 decodes to +1, -0 to -1. But a tensor of zeros alone decodes to zeros, so that who has
// nothing to say, such as a rank that has joined, has no vote. A tensor here is what is encoded as one: a rank's chunk
// of a bucket, so that a chunk in which all votes tie comes out as zeros.
//
// Bytes: exactly 1 + ceil(n / 8) for n > 0, none for n = 0: a marker, 1 when any value is infinite or NaN, 2 when all
// are zero, else 0; then all signs, 1 for negative, from the low bit of a byte upwards.
//
// Infinity and NaN: a tensor with either decodes to NaN throughout.
#pragma once

#include <memory>

#include "gradwire/compress/codec.h"

namespace gradwire::compress {

// Named "sign".
std::unique_ptr<Codec> make_sign_codec();

}  // namespace gradwire::compress
