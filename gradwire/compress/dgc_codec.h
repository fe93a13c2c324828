// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Top-k with a warm-up of sparsity (Lin et al. 2018, "Deep gradient compression"): while training is young and
// gradients change fast, more is sent. Meant to be used with the momentum memory, which is the paper's other half.
//
// Algorithm: that of top-k (top_k_codec.h) with k = ceil(r n), where r depends on EncodeKey::step: a quarter at first,
// then a quarter of that, and so on down to `ratio`, in stages of equal length over the first `ramp` steps: with S the
// least number for which 4^-(S+1) <= ratio, stage s = floor(step S / ramp) sends r = 4^-(s+1), and from step `ramp` on
// r = ratio. A ratio of a quarter or more has no warm-up.
//
// Bytes: exactly 8 k, as of top-k.
//
// Infinity and NaN: as of top-k.
#pragma once

#include <memory>

#include "gradwire/compress/codec.h"

namespace gradwire::compress {

struct DgcOptions {
  double ratio = 0.001;       // of the values, in the end; above 0 and at most 1
  std::uint32_t ramp = 1000;  // steps until then; 0: none
};

// Throws InvalidArgument for a wrong ratio. Named "dgc:ratio=0.001,ramp=1000".
std::unique_ptr<Codec> make_dgc_codec(const DgcOptions& options = {});

}  // namespace gradwire::compress
