// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The launches of cuda/launch_internal.h on the host, for tests without a GPU: the functions that the kernels call, in
// loops that stand for the grid. A warp is a loop over its 32 lanes, each with a lane's part of the work.
#pragma once

#include <vector>

#include "gradwire/hooks/device/cuda/cast_internal.h"
#include "gradwire/hooks/device/cuda/launch_internal.h"
#include "gradwire/hooks/device/cuda/one_bit_internal.h"
#include "gradwire/hooks/device/cuda/sign_internal.h"
#include "gradwire/hooks/device/cuda/top_k_internal.h"

namespace gradwire::cuda::on_host {

inline constexpr unsigned kLanes = 32;

template <class Format, class ScaleOf>
void encode_rows(const Format& format, Rows rows, const float* values, std::uint8_t* bytes, const ScaleOf& scale_of) {
  for (std::size_t row = 0; row < rows.number(); ++row) {
    const std::size_t begin = rows.begin(row), length = rows.length(row);
    const float scale = scale_of(values + begin, length);
    memcpy(bytes + 4 * row, &scale, sizeof(scale));
    for (unsigned lane = 0; lane < kLanes; ++lane)
      encode_values(format, values, begin, length, scale, bytes + 4 * rows.number(), lane, kLanes);
  }
}

template <class Format>
int encode_by_largest(const Format& format, Rows rows, const float* values, std::uint8_t* bytes, Stream) {
  encode_rows(format, rows, values, bytes, [&](const float* row, std::size_t length) {
    std::uint32_t largest = 0;
    for (unsigned lane = 0; lane < kLanes; ++lane)
      largest = std::max(largest, largest_of(format, row, length, lane, kLanes));
    return format.scale(largest);
  });
  return 0;
}

template <class Format>
int decode_rows(const Format& format, Rows rows, const std::uint8_t* bytes, const float* sum, float* values, Stream) {
  const std::size_t groups = rows.number() * rows.groups_in_row();
  for (std::size_t group = 0; group < groups; ++group) decode_group(format, rows, bytes, sum, values, group);
  return 0;
}

inline int encode_one_bit(Rows rows, const float* values, std::uint8_t* bytes, Stream) {
  encode_rows(OneBitFormat{}, rows, values, bytes, [](const float* row, std::size_t length) {
    float partial[kPartialSums];
    for (unsigned i = 0; i < kPartialSums; ++i) partial[i] = partial_sum(row, length, i);
    for (unsigned half = kPartialSums / 2; half > 0; half /= 2) {
      for (unsigned i = 0; i < half; ++i) partial[i] += partial[i + half];
    }
    return partial[0] / static_cast<float>(length);
  });
  return 0;
}
inline int decode_one_bit(Rows rows, const std::uint8_t* bytes, const float* sum, float* values, Stream stream) {
  return decode_rows(OneBitFormat{}, rows, bytes, sum, values, stream);
}

inline int encode_cast(Half to, const float* values, std::size_t count, std::uint8_t* bytes, Stream) {
  for (std::size_t group = 0; group < groups_in(count); ++group) {
    to == Half::f16 ? encode_cast_group<F16>(values, count, bytes, group)
                    : encode_cast_group<Bf16>(values, count, bytes, group);
  }
  return 0;
}
inline int decode_cast(Half from, const std::uint8_t* bytes, std::size_t count, const float* sum, float* values,
                       Stream) {
  for (std::size_t group = 0; group < groups_in(count); ++group) {
    from == Half::f16 ? decode_cast_group<F16>(bytes, count, sum, values, group)
                      : decode_cast_group<Bf16>(bytes, count, sum, values, group);
  }
  return 0;
}

inline int encode_sign(const float* values, std::size_t count, std::uint8_t* bytes, Stream) {
  bytes[0] = 0;
  for (std::size_t group = 0; kGroup * group < count; ++group) {
    if (!encode_sign_group(values, count, bytes, group)) bytes[0] = 1;
  }
  return 0;
}
inline int decode_sign(const std::uint8_t* bytes, std::size_t count, const float* sum, float* values, Stream) {
  for (std::size_t group = 0; kGroup * group < count; ++group) decode_sign_group(bytes, count, sum, values, group);
  return 0;
}

inline std::size_t top_k_workspace(std::size_t) { return 16; }
inline int encode_top_k(const float* values, std::size_t count, std::size_t kept, void*, std::uint8_t* bytes, Stream) {
  Bar bar{0, static_cast<std::uint32_t>(kept)};
  for (int digit = 0; digit < kDigits; ++digit) {
    std::vector<std::uint32_t> histogram(kBins + 1);
    for (std::size_t i = 0; i < count; ++i) ++histogram[bin_of(kernels::magnitude_bits_of(values[i]), digit, bar)];
    unsigned bin = kBins - 1;
    while (!take_bin(bar, digit, bin, histogram[bin])) --bin;
  }
  Before before{0, 0};
  for (std::size_t i = 0; i < count; ++i) {
    write_if_chosen(values[i], i, bar, before, bytes);
    count_value(kernels::magnitude_bits_of(values[i]), bar, before);
  }
  return 0;
}
inline int decode_pairs(const std::uint8_t* bytes, std::size_t pairs, std::size_t count, const float* sum,
                        float* values, Stream) {
  for (std::size_t i = 0; i < count; ++i) values[i] = sum == nullptr ? 0.0f : sum[i] + 0.0f;
  for (std::size_t pair = 0; pair < pairs; ++pair) put_pair(bytes, pair, sum, values, count);
  return 0;
}

inline int use_device(int) { return 0; }
inline const char* error_text(int) { return "no device"; }

inline constexpr Launches kLaunches{&use_device,
                                    &encode_cast,
                                    &decode_cast,
                                    &encode_by_largest<IntegerFormat>,
                                    &decode_rows<IntegerFormat>,
                                    &encode_by_largest<Fp8Format>,
                                    &decode_rows<Fp8Format>,
                                    &encode_one_bit,
                                    &decode_one_bit,
                                    &encode_sign,
                                    &decode_sign,
                                    &top_k_workspace,
                                    &encode_top_k,
                                    &decode_pairs,
                                    &error_text};

}  // namespace gradwire::cuda::on_host
