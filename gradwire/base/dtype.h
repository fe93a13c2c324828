// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Element types.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace gradwire {

// The element type of a buffer. Ranks send the numbers to each other (in fingerprints), so the numbers never change.
enum class DType : std::uint8_t {
  f16 = 0,   // IEEE 754 binary16
  bf16 = 1,  // bfloat16: the upper half of a binary32
  f32 = 2,
  f64 = 3,
  i8 = 4,
  u8 = 5,
  i32 = 6,
  i64 = 7,
  boolean = 8,  // one byte, 0 or 1; any other byte counts as true
  c64 = 9,      // complex of two f32: real, imaginary
  c128 = 10,    // complex of two f64
};

inline constexpr int kDTypeCount = 11;  // the number of values of DType

// Bytes of one element. `dtype` must be one of the enumerators.
std::size_t size_of(DType dtype) noexcept;

// "f32", "bf16", "bool", ...: the word used in messages and on command lines.
std::string_view name_of(DType dtype) noexcept;

// The inverse of name_of(). Throws InvalidArgument for an unknown name, with the list of names.
DType dtype_from_name(std::string_view name);

bool is_floating(DType dtype) noexcept;  // f16, bf16, f32, f64
bool is_integer(DType dtype) noexcept;   // i8, u8, i32, i64
bool is_complex(DType dtype) noexcept;   // c64, c128

}  // namespace gradwire
