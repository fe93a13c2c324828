// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// What the kernels' tests compare against: the meaning of the dtypes and reductions, written without the kernels' code
// and by other means (values of half types are looked up in a table of all of them; f32 arithmetic is done in f64 and
// rounded, which for one +, -, * or / gives the correctly rounded f32).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "gradwire/base/dtype.h"
#include "gradwire/base/reduce_op.h"

namespace gradwire::kernels::oracle {

inline constexpr DType kDTypes[] = {DType::f16, DType::bf16, DType::f32,     DType::f64, DType::i8,  DType::u8,
                                    DType::i32, DType::i64,  DType::boolean, DType::c64, DType::c128};

inline constexpr ReduceOp kOps[] = {ReduceOp::sum(), ReduceOp::avg(),  ReduceOp::product(),
                                    ReduceOp::min(), ReduceOp::max(),  ReduceOp::band(),
                                    ReduceOp::bor(), ReduceOp::bxor(), ReduceOp::premul_sum(0.3)};

// A binary floating-point format of 16 bits: all of its values, and rounding by looking for the nearest.
class HalfType {
 public:
  explicit HalfType(int exponent_bits) : mantissa_bits_(15 - exponent_bits), bias_((1 << (exponent_bits - 1)) - 1) {
    infinity_ = static_cast<std::uint16_t>(((1u << exponent_bits) - 1) << mantissa_bits_);
    for (std::uint32_t bits = 0; bits <= infinity_; ++bits) magnitudes_.push_back(magnitude(bits));
    // For rounding, infinity stands where the next number would be.
    magnitudes_.back() = 2 * magnitudes_[infinity_ - 1u] - magnitudes_[infinity_ - 2u];
  }
  static const HalfType& f16() {
    static const HalfType type(5);
    return type;
  }
  static const HalfType& bf16() {
    static const HalfType type(8);
    return type;
  }
  double decode(std::uint16_t bits) const {
    const std::uint16_t positive = bits & 0x7fffu;
    double value = std::numeric_limits<double>::quiet_NaN();
    if (positive == infinity_) value = std::numeric_limits<double>::infinity();
    if (positive < infinity_) value = magnitude(positive);
    return (bits & 0x8000u) != 0 ? -value : value;
  }
  // To nearest, ties to the even one. A NaN gives some NaN.
  std::uint16_t encode(double value) const {
    const std::uint16_t sign = std::signbit(value) ? 0x8000u : 0u;
    if (std::isnan(value)) return static_cast<std::uint16_t>(sign | infinity_ | 1u);
    const double positive = std::fabs(value);
    if (positive >= magnitudes_.back()) return static_cast<std::uint16_t>(sign | infinity_);
    const auto above = std::upper_bound(magnitudes_.begin(), magnitudes_.end(), positive);
    const auto low = static_cast<std::uint16_t>(above - magnitudes_.begin() - 1);
    const double down = positive - magnitudes_[low];  // both exact: neighbours differ by few bits
    const double up = magnitudes_[low + 1u] - positive;
    const bool round_up = up < down || (up == down && (low & 1u) != 0);
    return static_cast<std::uint16_t>(sign | (low + (round_up ? 1u : 0u)));
  }

 private:
  double magnitude(std::uint32_t bits) const {
    const auto mantissa = static_cast<int>(bits & ((1u << mantissa_bits_) - 1));
    const auto exponent = static_cast<int>(bits >> mantissa_bits_);
    if (exponent == 0) return std::ldexp(mantissa, 1 - bias_ - mantissa_bits_);
    return std::ldexp(mantissa + (1 << mantissa_bits_), exponent - bias_ - mantissa_bits_);
  }

  int mantissa_bits_;
  int bias_;
  std::uint16_t infinity_ = 0;
  std::vector<double> magnitudes_;
};

// Arithmetic of f32 (`single`) or f64.
struct Arithmetic {
  bool single;
  double rounded(double value) const { return single ? static_cast<double>(static_cast<float>(value)) : value; }
  double add(double a, double b) const { return rounded(a + b); }
  double multiply(double a, double b) const { return rounded(a * b); }
  double divide(double a, double b) const { return rounded(a / b); }
};

struct Number {
  double real = 0;
  double imaginary = 0;  // 0 unless the dtype is complex
};

inline Number combine(const Arithmetic& math, ReduceOp::Kind kind, Number a, Number b, bool complex) {
  using Kind = ReduceOp::Kind;
  switch (kind) {
    case Kind::product:
      if (!complex) return {math.multiply(a.real, b.real), 0};
      return {math.add(math.multiply(a.real, b.real), -math.multiply(a.imaginary, b.imaginary)),
              math.add(math.multiply(a.real, b.imaginary), math.multiply(a.imaginary, b.real))};
    case Kind::min:
      if (std::isnan(a.real) || std::isnan(b.real)) return {std::numeric_limits<double>::quiet_NaN(), 0};
      return a.real <= b.real ? a : b;
    case Kind::max:
      if (std::isnan(a.real) || std::isnan(b.real)) return {std::numeric_limits<double>::quiet_NaN(), 0};
      return a.real >= b.real ? a : b;
    default:
      return {math.add(a.real, b.real), math.add(a.imaginary, b.imaginary)};
  }
}

inline Number reduce_numbers(const Arithmetic& math, ReduceOp op, const std::vector<Number>& inputs, bool complex) {
  const double factor = math.rounded(op.factor);
  const auto enter = [&](Number x) {
    if (op.kind != ReduceOp::Kind::premul_sum) return x;
    return Number{math.multiply(x.real, factor), math.multiply(x.imaginary, factor)};
  };
  Number result = enter(inputs[0]);
  for (std::size_t s = 1; s < inputs.size(); ++s) result = combine(math, op.kind, result, enter(inputs[s]), complex);
  if (op.kind == ReduceOp::Kind::avg) {
    const auto count = static_cast<double>(inputs.size());
    result = {math.divide(result.real, count), math.divide(result.imaginary, count)};
  }
  return result;
}

inline __int128 combine_integers(ReduceOp::Kind kind, __int128 a, __int128 b) {
  using Kind = ReduceOp::Kind;
  switch (kind) {
    case Kind::product:
      return static_cast<__int128>(static_cast<unsigned __int128>(a) * static_cast<unsigned __int128>(b));
    case Kind::min:
      return std::min(a, b);
    case Kind::max:
      return std::max(a, b);
    case Kind::band:
      return a & b;
    case Kind::bor:
      return a | b;
    case Kind::bxor:
      return a ^ b;
    default:
      return static_cast<__int128>(static_cast<unsigned __int128>(a) + static_cast<unsigned __int128>(b));
  }
}

template <class T>
T get(const std::uint8_t* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof(T));
  return value;
}
template <class T>
void put(std::uint8_t* bytes, T value) {
  std::memcpy(bytes, &value, sizeof(T));
}

inline Number read_number(DType dtype, const std::uint8_t* at) {
  switch (dtype) {
    case DType::f16:
      return {HalfType::f16().decode(get<std::uint16_t>(at)), 0};
    case DType::bf16:
      return {HalfType::bf16().decode(get<std::uint16_t>(at)), 0};
    case DType::f32:
      return {get<float>(at), 0};
    case DType::c64:
      return {get<float>(at), get<float>(at + 4)};
    case DType::c128:
      return {get<double>(at), get<double>(at + 8)};
    default:
      return {get<double>(at), 0};
  }
}

inline void write_number(DType dtype, Number value, std::uint8_t* at) {
  switch (dtype) {
    case DType::f16:
      return put(at, HalfType::f16().encode(value.real));
    case DType::bf16:
      return put(at, HalfType::bf16().encode(value.real));
    case DType::f32:
      return put(at, static_cast<float>(value.real));
    case DType::c64:
      put(at + 4, static_cast<float>(value.imaginary));
      return put(at, static_cast<float>(value.real));
    case DType::c128:
      put(at + 8, value.imaginary);
      return put(at, value.real);
    default:
      return put(at, value.real);
  }
}

template <class T>
void reduce_integer(ReduceOp op, const std::vector<const std::uint8_t*>& sources, std::uint8_t* out) {
  __int128 result = get<T>(sources[0]);
  for (std::size_t s = 1; s < sources.size(); ++s) result = combine_integers(op.kind, result, get<T>(sources[s]));
  auto wrapped = static_cast<T>(static_cast<std::uint64_t>(result));
  if (op.kind == ReduceOp::Kind::avg)
    wrapped = static_cast<T>(static_cast<__int128>(wrapped) / static_cast<__int128>(sources.size()));
  put(out, wrapped);
}

inline void reduce_boolean(ReduceOp op, const std::vector<const std::uint8_t*>& sources, std::uint8_t* out) {
  using Kind = ReduceOp::Kind;
  const auto truths = static_cast<std::size_t>(
      std::count_if(sources.begin(), sources.end(), [](const std::uint8_t* byte) { return *byte != 0; }));
  switch (op.kind) {
    case Kind::product:
    case Kind::min:
    case Kind::band:
      *out = truths == sources.size();
      return;
    case Kind::bxor:
      *out = truths % 2;
      return;
    default:
      *out = truths > 0;
  }
}

// One element: `sources` and `out` point to its bytes.
inline void reduce_element(DType dtype, ReduceOp op, const std::vector<const std::uint8_t*>& sources,
                           std::uint8_t* out) {
  switch (dtype) {
    case DType::i8:
      return reduce_integer<std::int8_t>(op, sources, out);
    case DType::u8:
      return reduce_integer<std::uint8_t>(op, sources, out);
    case DType::i32:
      return reduce_integer<std::int32_t>(op, sources, out);
    case DType::i64:
      return reduce_integer<std::int64_t>(op, sources, out);
    case DType::boolean:
      return reduce_boolean(op, sources, out);
    default:
      break;
  }
  std::vector<Number> inputs;
  for (const std::uint8_t* source : sources) inputs.push_back(read_number(dtype, source));
  const Arithmetic math{dtype != DType::f64 && dtype != DType::c128};
  write_number(dtype, reduce_numbers(math, op, inputs, is_complex(dtype)), out);
}

// Whole buffers of `count` elements.
inline std::vector<std::uint8_t> reduce(DType dtype, ReduceOp op, const std::vector<const std::uint8_t*>& sources,
                                        std::size_t count) {
  const std::size_t size = size_of(dtype);
  std::vector<std::uint8_t> out(count * size);
  for (std::size_t i = 0; i < count; ++i) {
    std::vector<const std::uint8_t*> elements;
    for (const std::uint8_t* source : sources) elements.push_back(source + i * size);
    reduce_element(dtype, op, elements, out.data() + i * size);
  }
  return out;
}

// The index of the first element in which two buffers differ, `count` when there is none. NaN equals NaN.
inline std::size_t first_difference(DType dtype, const void* left, const void* right, std::size_t count) {
  const auto* a = static_cast<const std::uint8_t*>(left);
  const auto* b = static_cast<const std::uint8_t*>(right);
  const std::size_t size = size_of(dtype);
  if (count == 0 || std::memcmp(a, b, count * size) == 0) return count;
  const std::size_t part = is_complex(dtype) ? size / 2 : size;
  const DType part_type = dtype == DType::c64 ? DType::f32 : dtype == DType::c128 ? DType::f64 : dtype;
  for (std::size_t at = 0; at < count * size; at += part) {
    if (std::memcmp(a + at, b + at, part) == 0) continue;
    const bool both_nan = is_floating(part_type) && std::isnan(read_number(part_type, a + at).real) &&
                          std::isnan(read_number(part_type, b + at).real);
    if (!both_nan) return at / size;
  }
  return count;
}

// Elements of which three in four have a moderate value and the rest are random bits: huge, tiny, infinite, NaN.
inline std::vector<std::uint8_t> random_elements(DType dtype, std::size_t count, std::uint32_t seed) {
  std::mt19937 random(seed);
  const std::size_t size = size_of(dtype);
  std::vector<std::uint8_t> bytes(count * size);
  for (auto& byte : bytes) byte = static_cast<std::uint8_t>(random());
  if (is_integer(dtype)) return bytes;
  std::uniform_real_distribution<double> moderate(-4, 4);
  for (std::size_t i = 0; i < count; ++i) {
    if (random() % 4 == 0) continue;
    if (dtype == DType::boolean) {
      bytes[i] = random() % 2;
    } else {
      write_number(dtype, {moderate(random), moderate(random)}, bytes.data() + i * size);
    }
  }
  return bytes;
}

}  // namespace gradwire::kernels::oracle
