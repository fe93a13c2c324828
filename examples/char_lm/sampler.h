// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Chooses samples. The samples of a step depend only on the seed and on the number of the step, not on the number of
// ranks or on earlier steps. So runs on one and on two ranks use the same samples, and so do a resumed run and an
// uninterrupted one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace char_lm {

// Returns 64 well-mixed bits from a key and two counters: SplitMix64's finalizer (Steele, Lea and Flood 2014), applied
// to each of them in turn.
std::uint64_t mix_bits(std::uint64_t key, std::uint64_t a, std::uint64_t b) noexcept;

// Returns a number in [0, 1) with 53 random bits.
double mix_unit(std::uint64_t key, std::uint64_t a, std::uint64_t b) noexcept;

class Sampler {
 public:
  // A sample is `context` characters and the next character, from a text of `length` > context characters. `batch` is
  // the number of samples of all ranks together, and must be a multiple of `world`.
  Sampler(std::uint64_t seed, std::size_t length, int context, int batch, int rank, int world);

  // Returns where the samples of this rank start in step `step`: this rank's contiguous share of the step's batch.
  std::vector<std::size_t> train(std::int64_t step) const;

  // Returns the same for batch `index` of `batches` batches of held-out text of `length` characters. The samples of all
  // batches are spread evenly: the first one is at the beginning of the text, and the last one at its end.
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
