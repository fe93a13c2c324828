// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Top-k: the k values of largest magnitude, exactly (Aji and Heafield 2017; with error feedback, Stich et al.
// 2018).
//
// Algorithm: k = ceil(ratio n), at least 1 of a tensor that is not empty. Of values with equal magnitudes the
// earlier ones are sent. Everything else decodes to 0. To find them in little more than one pass, a sample of the
// values gives a bound that somewhat more than k values are likely to reach; those are collected, and the k largest
// of them selected. When they turn out to be fewer than k, a second pass selects among all values: the result is
// exact, the sample decides the time only.
//
// Bytes: exactly 8 k: pairs of a u32 index and an f32 value, indices ascending.
//
// Infinity and NaN: rank above every number, NaN above infinity, and are sent as they are.
#pragma once

#include <memory>

#include "gradwire/compress/codec.h"

namespace gradwire::compress {

struct TopKOptions {
  double ratio = 0.01;  // of the values, above 0 and at most 1
};

// Throws InvalidArgument for a wrong ratio. Named "top_k:ratio=0.01".
std::unique_ptr<Codec> make_top_k_codec(const TopKOptions& options = {});

}  // namespace gradwire::compress
