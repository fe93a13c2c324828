// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Threshold: every value whose magnitude reaches a fixed bound (Strom 2015, with the value itself for its sign;
// Dutta et al. 2020 compare it with top-k). Meant to be used with error feedback.
//
// Algorithm: send x where |x| >= threshold; everything else decodes to 0.
//
// Bytes: 8 m for the m values that are sent: pairs of a u32 index and an f32 value, indices ascending. At most 8 n;
// not known before encoding.
//
// Infinity and NaN: are sent as they are.
#pragma once

#include <memory>

#include "gradwire/compress/codec.h"

namespace gradwire::compress {

struct ThresholdOptions {
  float threshold = 0.01f;  // above 0, finite
};

// Throws InvalidArgument for a wrong threshold. Named "threshold:threshold=0.01".
std::unique_ptr<Codec> make_threshold_codec(const ThresholdOptions& options = {});

}  // namespace gradwire::compress
