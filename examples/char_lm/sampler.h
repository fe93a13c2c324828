// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Chooses samples. What a step takes depends on the seed and the step alone: not on the number of ranks, not on the
// steps before. So a run on two ranks sees what a run on one sees, and a resumed run what an uninterrupted one sees.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace char_lm {

// 64 well-mixed bits out of a key and two counters (SplitMix64's finalizer, Steele, Lea and Flood 2014, applied to each
// in turn).
std::uint64_t mix_bits(std::uint64_t key, std::uint64_t a, std::uint64_t b) noexcept;

// A number in [0, 1) with 53 random bits.
double mix_unit(std::uint64_t key, std::uint64_t a, std::uint64_t b) noexcept;

class Sampler {
 public:
  // Samples are `context` characters and the one after, out of a text of `length` > context characters.
  // `batch` is of all ranks together and must be a multiple of `world`.
  Sampler(std::uint64_t seed, std::size_t length, int context, int batch, int rank, int world);

  // Where the samples of this rank start in step `step`: the rank's contiguous share of the step's batch.
  std::vector<std::size_t> train(std::int64_t step) const;

  // The same for batch `index` of `batches` batches of held-out text of `length` characters: windows spread evenly, the
  // first at the beginning and the last at the end.
  std::vector<std::size_t> held_out(int index, int batches, std::size_t length) const;

 private:
  std::uint64_t seed_;
  std::size_t length_;
  std::size_t context_;
  std::size_t batch_;
  std::size_t share_;
  std::size_t first_;  // of this rank's share
};

}  // namespace char_lm
