// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/process_group/dtype_internal.h"

#include <array>
#include <utility>

namespace gradwire::internal {
namespace {

constexpr std::array<std::pair<DType, at::ScalarType>, kDTypeCount> kPairs = {{
    {DType::f16, at::kHalf},
    {DType::bf16, at::kBFloat16},
    {DType::f32, at::kFloat},
    {DType::f64, at::kDouble},
    {DType::i8, at::kChar},
    {DType::u8, at::kByte},
    {DType::i32, at::kInt},
    {DType::i64, at::kLong},
    {DType::boolean, at::kBool},
    {DType::c64, at::kComplexFloat},
    {DType::c128, at::kComplexDouble},
}};

}  // namespace

std::optional<DType> to_dtype(at::ScalarType type) noexcept {
  for (const auto& [dtype, scalar] : kPairs) {
    if (scalar == type) return dtype;
  }
  return std::nullopt;
}

std::optional<DType> to_floating_dtype(at::ScalarType type) noexcept {
  const std::optional<DType> dtype = to_dtype(type);
  return dtype && is_floating(*dtype) ? dtype : std::nullopt;
}

bool divides_before_sum(at::ScalarType type) noexcept { return type == at::kHalf; }

}  // namespace gradwire::internal
