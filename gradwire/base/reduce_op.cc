// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/base/reduce_op.h"

#include <array>

#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"

namespace gradwire {
namespace {

constexpr std::array<std::string_view, kReduceOpCount> kNames{"sum",  "avg", "product", "min",       "max",
                                                              "band", "bor", "bxor",    "premul_sum"};

}  // namespace

std::string_view name_of(ReduceOp::Kind kind) noexcept {
  const auto index = static_cast<std::size_t>(kind);
  return index < kNames.size() ? kNames[index] : "unknown reduce op";
}

ReduceOp reduce_op_from_name(std::string_view name) {
  std::string known;
  for (std::size_t i = 0; i < kNames.size(); ++i) {
    if (kNames[i] == name) return {static_cast<ReduceOp::Kind>(i)};
    known += concat(i == 0 ? "" : ", ", kNames[i]);
  }
  throw InvalidArgument(concat("unknown reduce op '", name, "'; known are ", known));
}

bool is_defined(ReduceOp op, DType dtype) noexcept {
  using Kind = ReduceOp::Kind;
  switch (op.kind) {
    case Kind::sum:
    case Kind::product:
      return true;
    case Kind::avg:
      return dtype != DType::boolean;
    case Kind::premul_sum:
      return is_floating(dtype) || is_complex(dtype);
    case Kind::min:
    case Kind::max:
      return !is_complex(dtype);
    case Kind::band:
    case Kind::bor:
    case Kind::bxor:
      return is_integer(dtype) || dtype == DType::boolean;
  }
  return false;
}

void require_defined(ReduceOp op, DType dtype) {
  if (is_defined(op, dtype)) return;
  std::string advice;
  switch (op.kind) {
    case ReduceOp::Kind::avg:
      advice = "; use bor or band";
      break;
    case ReduceOp::Kind::premul_sum:
      advice = "; use sum and multiply, or a floating dtype";
      break;
    case ReduceOp::Kind::min:
    case ReduceOp::Kind::max:
      advice = "; complex numbers have no order";
      break;
    default:
      advice = "; bitwise operations are for integers and bool";
  }
  throw InvalidArgument(concat("reduce op ", name_of(op.kind), " is not defined for dtype ", name_of(dtype), advice));
}

}  // namespace gradwire
