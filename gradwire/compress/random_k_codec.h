// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Random-k with a shared seed: k values at places that every rank draws for itself, so that indices never travel
// and encodings of different ranks can be added (Stich et al. 2018; Wangni et al. 2018 for the unbiased form).
//
// Algorithm: k = ceil(ratio n), at least 1 of a tensor that is not empty. The tensor is cut into k stretches, as
// equal as whole numbers allow; of each one value is drawn, uniformly (to one part in 2^32 / length), from the
// numbers of EncodeKey's seed, tensor and step; its rank is not looked at. The others decode to 0. `unbiased`
// multiplies what is sent by the length of its stretch, which makes the expectation of the decoded tensor the
// tensor; leave it off with error feedback.
//
// Bytes: exactly 4 k + 4 for n > 0, none for n = 0: the values in order, after an f32 that is 0, or NaN when any
// value of the tensor, sent or not, is infinite or NaN.
//
// Infinity and NaN: a tensor with either decodes to NaN throughout.
#pragma once

#include <memory>

#include "gradwire/compress/codec.h"

namespace gradwire::compress {

struct RandomKOptions {
  double ratio = 0.01;  // of the values, above 0 and at most 1
  bool unbiased = false;
};

// Throws InvalidArgument for a wrong ratio. Named "random_k:ratio=0.01", "random_k:ratio=0.01,unbiased=1".
std::unique_ptr<Codec> make_random_k_codec(const RandomKOptions& options = {});

}  // namespace gradwire::compress
