// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The choice of the values of largest magnitude, of equal ones the first. The bar is the magnitude of the last value
// that is kept. The bar is found digit by digit (a radix selection): a histogram of the highest 11 bits of all
// magnitudes says in which digit the bar lies and how many values lie above; two more histograms, of the values whose
// higher digits are the bar's, give the next 10 bits each. Then the values above the bar, and as many equal ones as are
// left, are written in ascending order of index.
//
// torch.topk sorts what it selects, by a key that is not ours (NaN, ties), and returns 64-bit indices: its result would
// have to be reduced to a bar, and the values selected again. So a selection of our own reads the values no more often.
#pragma once

#include "gradwire/hooks/device/cuda/groups_internal.h"
#include "gradwire/kernels/value_internal.h"

namespace gradwire::cuda {

inline constexpr int kDigits = 3;
inline constexpr unsigned kBins = 2048;

GRADWIRE_HOST_DEVICE constexpr int digit_shift(int digit) { return digit == 0 ? 20 : digit == 1 ? 10 : 0; }
GRADWIRE_HOST_DEVICE constexpr int digit_bits(int digit) { return digit == 0 ? 11 : 10; }

// What is known of the bar.
struct Bar {
  std::uint32_t bits;    // the digits found so far; the others are 0
  std::uint32_t wanted;  // how many values are still to be chosen among those with these digits
};

// The bin of a magnitude in the histogram of `digit`, or kBins where a higher digit is not the bar's.
GRADWIRE_HOST_DEVICE inline unsigned bin_of(std::uint32_t magnitude, int digit, const Bar& bar) {
  const int above = digit_shift(digit) + digit_bits(digit);
  if (digit > 0 && magnitude >> above != bar.bits >> above) return kBins;
  return magnitude >> digit_shift(digit) & ((1u << digit_bits(digit)) - 1u);
}

// Takes the step from bin `bin`, which holds `in_bin` values: true when the bar has this digit. Called from the
// highest bin downwards.
GRADWIRE_HOST_DEVICE inline bool take_bin(Bar& bar, int digit, unsigned bin, std::uint32_t in_bin) {
  if (in_bin < bar.wanted) {
    bar.wanted -= in_bin;
    return false;
  }
  bar.bits |= bin << digit_shift(digit);
  return true;
}

// How many values come before a value: those above the bar, and those equal to it.
struct Before {
  std::uint32_t above;
  std::uint32_t equal;
};
GRADWIRE_HOST_DEVICE inline void count_value(std::uint32_t magnitude, const Bar& bar, Before& before) {
  if (magnitude > bar.bits) ++before.above;
  if (magnitude == bar.bits) ++before.equal;
}

// Writes the pair of a value that is chosen, at its place.
GRADWIRE_HOST_DEVICE inline void write_if_chosen(float value, std::size_t index, const Bar& bar, const Before& before,
                                                 std::uint8_t* pairs) {
  const std::uint32_t magnitude = kernels::magnitude_bits_of(value);
  if (magnitude < bar.bits || (magnitude == bar.bits && before.equal >= bar.wanted)) return;
  const std::size_t place = before.above + (before.equal < bar.wanted ? before.equal : bar.wanted);
  const auto number = static_cast<std::uint32_t>(index);
  memcpy(__builtin_assume_aligned(pairs + 8 * place, 4), &number, 4);
  memcpy(__builtin_assume_aligned(pairs + 8 * place + 4, 4), &value, 4);
}

// Puts pair `pair` of `bytes` into `values`, which are zeros, or copies of `sum` plus zero. Bytes of another rank lead
// nowhere but to one of the `count` values.
GRADWIRE_HOST_DEVICE inline void put_pair(const std::uint8_t* bytes, std::size_t pair, const float* sum, float* values,
                                          std::size_t count) {
  std::uint32_t index;
  memcpy(&index, bytes + 8 * pair, sizeof(index));
  const float value = load_float(bytes + 8 * pair + 4);
  const std::size_t place = index < count ? index : count - 1;
  values[place] = sum == nullptr ? value : sum[place] + value;
}

}  // namespace gradwire::cuda
