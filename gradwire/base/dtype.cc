// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/base/dtype.h"

#include <array>

#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"

namespace gradwire {
namespace {

struct Row {
  std::string_view name;
  std::size_t size;
};
constexpr std::array<Row, kDTypeCount> kRows{{{"f16", 2},
                                              {"bf16", 2},
                                              {"f32", 4},
                                              {"f64", 8},
                                              {"i8", 1},
                                              {"u8", 1},
                                              {"i32", 4},
                                              {"i64", 8},
                                              {"bool", 1},
                                              {"c64", 8},
                                              {"c128", 16}}};

}  // namespace

std::size_t size_of(DType dtype) noexcept { return kRows[static_cast<std::size_t>(dtype)].size; }

std::string_view name_of(DType dtype) noexcept {
  const auto index = static_cast<std::size_t>(dtype);
  return index < kRows.size() ? kRows[index].name : "unknown dtype";
}

DType dtype_from_name(std::string_view name) {
  std::string known;
  for (std::size_t i = 0; i < kRows.size(); ++i) {
    if (kRows[i].name == name) return static_cast<DType>(i);
    known += concat(i == 0 ? "" : ", ", kRows[i].name);
  }
  throw InvalidArgument(concat("unknown dtype '", name, "'; known are ", known));
}

bool is_floating(DType dtype) noexcept {
  return dtype == DType::f16 || dtype == DType::bf16 || dtype == DType::f32 || dtype == DType::f64;
}

bool is_integer(DType dtype) noexcept {
  return dtype == DType::i8 || dtype == DType::u8 || dtype == DType::i32 || dtype == DType::i64;
}

bool is_complex(DType dtype) noexcept { return dtype == DType::c64 || dtype == DType::c128; }

}  // namespace gradwire
