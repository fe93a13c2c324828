// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <limits>

#include "gradwire/hooks/device/affine_internal.h"
#include "gradwire/hooks/device/device_bits_internal.h"

namespace gradwire::internal {
namespace {

constexpr double kLargestCode = 255;

struct Scales {
  at::Tensor scale;       // float32: one for each row; NaN for a row with an infinity or a NaN
  at::Tensor zero_point;  // float32
};

Scales scales_of(const at::Tensor& rows) {
  const at::Tensor finite = at::all(at::isfinite(rows), 1);
  const at::Tensor low = at::clamp_max(at::amin(rows, 1), 0);
  const at::Tensor high = at::clamp_min(at::amax(rows, 1), 0);
  at::Tensor scale = divided_by(high - low, kLargestCode);
  // The range of +-max does not fit into an f32, its 255th part does.
  const at::Tensor wide = divided_by(high.to(at::kDouble) - low.to(at::kDouble), kLargestCode).to(at::kFloat);
  scale = at::where(at::isinf(scale), wide, scale);
  scale = at::clamp_min(scale, std::numeric_limits<float>::min());
  const at::Tensor zero_point = at::clamp(at::neg(at::round(at::div(low, scale))), 0, kLargestCode) + 0.0;
  return {at::where(finite, scale, std::numeric_limits<double>::quiet_NaN()).to(at::kFloat),
          at::where(finite, zero_point, 0.0).to(at::kFloat)};
}

}  // namespace

at::Tensor encode_affine(const at::Tensor& values, std::int64_t row) {
  const at::Tensor rows = rows_of(values, row);
  const Scales scales = scales_of(rows);
  const at::Tensor scale = scales.scale.view({-1, 1});
  at::Tensor codes = at::clamp(at::round(at::div(rows, scale)) + scales.zero_point.view({-1, 1}), 0, kLargestCode);
  codes = at::where(at::isnan(scale), 0.0, codes).to(at::kByte);
  return at::cat(
      {as_bytes(scales.scale), scales.zero_point.to(at::kByte), codes.view({-1}).narrow(0, 0, values.numel())});
}

at::Tensor average_affine(const at::Tensor& packets, std::int64_t count, std::int64_t row, int ranks, int divisor) {
  const std::int64_t rows = (count + row - 1) / row;
  const std::int64_t size = packets.numel() / ranks;
  at::Tensor sum;
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    const at::Tensor packet = packets.narrow(0, rank * size, size);
    const at::Tensor scale = numbers_in(packet, 0, rows, at::kFloat).view({rows, 1});
    const at::Tensor zero_point = packet.narrow(0, 4 * rows, rows).to(at::kFloat).view({rows, 1});
    const at::Tensor codes = rows_of(packet.narrow(0, 5 * rows, count), row).to(at::kFloat);
    const at::Tensor values = scale * (codes - zero_point);
    sum = rank == 0 ? values : sum + values;
  }
  return divided_by(sum, divisor).view({-1}).narrow(0, 0, count);
}

}  // namespace gradwire::internal
