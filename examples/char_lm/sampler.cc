// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "examples/char_lm/sampler.h"

#include "gradwire/base/error.h"

namespace char_lm {
namespace {

std::uint64_t finalize(std::uint64_t z) noexcept {
  z += 0x9e3779b97f4a7c15;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

}  // namespace

std::uint64_t mix_bits(std::uint64_t key, std::uint64_t a, std::uint64_t b) noexcept {
  return finalize(finalize(finalize(key) ^ a) ^ b);
}

double mix_unit(std::uint64_t key, std::uint64_t a, std::uint64_t b) noexcept {
  return static_cast<double>(mix_bits(key, a, b) >> 11) * 0x1p-53;
}

Sampler::Sampler(std::uint64_t seed, std::size_t length, int context, int batch, int rank, int world)
    : seed_(seed),
      length_(length),
      context_(static_cast<std::size_t>(context)),
      batch_(static_cast<std::size_t>(batch)),
      share_(static_cast<std::size_t>(batch / world)),
      first_(static_cast<std::size_t>(rank) * share_) {
  GRADWIRE_CHECK(batch % world == 0 && rank >= 0 && rank < world && length_ > context_);
}

std::vector<std::size_t> Sampler::train(std::int64_t step) const {
  const std::size_t starts = length_ - context_;
  std::vector<std::size_t> chosen(share_);
  for (std::size_t i = 0; i < share_; ++i) {
    chosen[i] = mix_bits(seed_, static_cast<std::uint64_t>(step), first_ + i) % starts;
  }
  return chosen;
}

std::vector<std::size_t> Sampler::held_out(int index, int batches, std::size_t length) const {
  const std::size_t last_start = length - context_ - 1;
  const std::size_t windows = static_cast<std::size_t>(batches) * batch_;
  std::vector<std::size_t> chosen(share_);
  for (std::size_t i = 0; i < share_; ++i) {
    const std::size_t window = static_cast<std::size_t>(index) * batch_ + first_ + i;
    chosen[i] = windows == 1 ? 0 : last_start * window / (windows - 1);
  }
  return chosen;
}

}  // namespace char_lm
