// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <vector>

#include "gradwire/hooks/device/device_bits_internal.h"

namespace gradwire::internal {
namespace {

constexpr std::int64_t kLow32 = 0xffffffff;

at::Tensor padded(const at::Tensor& values, std::int64_t multiple) {
  const std::int64_t missing = (multiple - values.numel() % multiple) % multiple;
  return missing == 0 ? values : at::constant_pad_nd(values, {0, missing});
}

}  // namespace

at::Tensor bits_of(const at::Tensor& values) { return values.view(at::kInt); }

at::Tensor as_bytes(const at::Tensor& tensor) { return tensor.contiguous().reshape({-1}).view(at::kByte); }

at::Tensor numbers_in(const at::Tensor& bytes, std::int64_t first, std::int64_t count, at::ScalarType dtype) {
  const auto size = count * static_cast<std::int64_t>(c10::elementSize(dtype));
  return bytes.narrow(0, first, size).clone().view(dtype);
}

at::Tensor rows_of(const at::Tensor& values, std::int64_t block) { return padded(values, block).view({-1, block}); }

at::Tensor pack(const at::Tensor& codes, int bits) {
  if (bits == 8) return codes;
  const std::int64_t in_a_byte = 8 / bits;
  const at::Tensor rows = rows_of(codes, in_a_byte);
  at::Tensor bytes = rows.select(1, 0);
  for (std::int64_t i = 1; i < in_a_byte; ++i)
    bytes = at::bitwise_or(bytes, at::bitwise_left_shift(rows.select(1, i), static_cast<int>(i) * bits));
  return bytes.contiguous();
}

at::Tensor unpack(const at::Tensor& bytes, int bits, std::int64_t count) {
  if (bits == 8) return bytes.narrow(0, 0, count);
  std::vector<at::Tensor> columns;
  for (int shift = 0; shift < 8; shift += bits)
    columns.push_back(at::bitwise_and(at::bitwise_right_shift(bytes, shift), (1 << bits) - 1));
  return at::stack(columns, 1).view({-1}).narrow(0, 0, count);
}

at::Tensor signs_of(const at::Tensor& values) { return at::lt(bits_of(values), 0).to(at::kByte); }

at::Tensor philox_numbers(const kernels::PhiloxKey& key, std::int64_t count, const at::Device& device) {
  const auto options = at::TensorOptions(device).dtype(at::kLong);
  const at::Tensor n = at::arange((count + 3) / 4, options);
  at::Tensor counter[4] = {n, at::zeros_like(n), at::zeros_like(n), at::zeros_like(n)};
  std::uint32_t round_key[2] = {key[0], key[1]};
  const auto low = [](const at::Tensor& word) { return at::bitwise_and(word, kLow32); };
  const auto high = [&](const at::Tensor& word) { return low(at::bitwise_right_shift(word, 32)); };
  const auto mixed = [](const at::Tensor& one, const at::Tensor& other, std::uint32_t with) {
    return at::bitwise_xor(at::bitwise_xor(one, other), static_cast<std::int64_t>(with));
  };
  for (int round = 0; round < kernels::kPhiloxRounds; ++round) {
    const at::Tensor left = counter[0] * static_cast<std::int64_t>(kernels::kPhiloxFactor0);
    const at::Tensor right = counter[2] * static_cast<std::int64_t>(kernels::kPhiloxFactor1);
    counter[0] = mixed(high(right), counter[1], round_key[0]);
    counter[1] = low(right);
    counter[2] = mixed(high(left), counter[3], round_key[1]);
    counter[3] = low(left);
    round_key[0] += kernels::kPhiloxStep0;
    round_key[1] += kernels::kPhiloxStep1;
  }
  return at::stack({counter[0], counter[1], counter[2], counter[3]}, 1).view({-1}).narrow(0, 0, count);
}

at::Tensor divided_by(const at::Tensor& dividend, double divisor) {
  return at::div(dividend, at::full({1}, divisor, dividend.options()));
}

}  // namespace gradwire::internal
