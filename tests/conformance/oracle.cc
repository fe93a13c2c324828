// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "tests/conformance/oracle.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"

namespace gradwire::testing {
namespace {

template <class T>
T load(const std::byte* data, std::size_t i) {
  T value;
  std::memcpy(&value, data + i * sizeof(T), sizeof(T));
  return value;
}

template <class T>
void store(std::byte* data, std::size_t i, T value) {
  std::memcpy(data + i * sizeof(T), &value, sizeof(T));
}

// A binary format with `mantissa` stored bits and exponents from `lowest` (of the smallest normal number) to `highest`.
struct Format {
  int mantissa;
  int lowest;
  int highest;
};
constexpr Format kHalf{10, -14, 15};
constexpr Format kBrain{7, -126, 127};

double decode(std::uint16_t bits, Format format) {
  const int fields = bits & 0x7fff;
  const int exponent = fields >> format.mantissa;
  const int mantissa = fields & ((1 << format.mantissa) - 1);
  double value = 0;
  if (exponent == format.highest - format.lowest + 2) {
    value = mantissa == 0 ? std::numeric_limits<double>::infinity() : std::numeric_limits<double>::quiet_NaN();
  } else if (exponent == 0) {
    value = std::ldexp(mantissa, format.lowest - format.mantissa);
  } else {
    value = std::ldexp(mantissa + (1 << format.mantissa), exponent - 1 + format.lowest - format.mantissa);
  }
  return (bits & 0x8000) != 0 ? -value : value;
}

std::uint16_t encode(double value, Format format) {
  const auto sign = static_cast<std::uint16_t>(std::signbit(value) ? 0x8000 : 0);
  const auto infinity = static_cast<std::uint16_t>((format.highest - format.lowest + 2) << format.mantissa);
  if (std::isnan(value)) return static_cast<std::uint16_t>(sign | infinity | (1 << (format.mantissa - 1)));
  const double magnitude = std::fabs(value);
  if (std::isinf(magnitude)) return sign | infinity;
  const int exponent = magnitude == 0 ? format.lowest : std::max(format.lowest, std::ilogb(magnitude));
  // In units of the last place; nearbyint rounds ties to even, and a carry moves into the exponent by itself.
  const double units = std::nearbyint(std::ldexp(magnitude, format.mantissa - exponent));
  const auto bits = static_cast<int>(units) + ((exponent - format.lowest) << format.mantissa);
  return static_cast<std::uint16_t>(sign | std::min<int>(bits, infinity));
}

// What an op does with two numbers of the type that accumulates.
template <class T>
T apply(ReduceOp::Kind kind, T a, T b) {
  using Kind = ReduceOp::Kind;
  switch (kind) {
    case Kind::sum:
    case Kind::avg:
    case Kind::premul_sum:
      if constexpr (std::is_integral_v<T>) {
        return static_cast<T>(static_cast<std::make_unsigned_t<T>>(a) + static_cast<std::make_unsigned_t<T>>(b));
      } else {
        return a + b;
      }
    case Kind::product:
      if constexpr (std::is_integral_v<T>) {
        return static_cast<T>(static_cast<std::uint64_t>(a) * static_cast<std::uint64_t>(b));
      } else {
        return a * b;
      }
    case Kind::min:
    case Kind::max:
      if constexpr (std::is_floating_point_v<T>) {
        if (std::isnan(a) || std::isnan(b)) return std::numeric_limits<T>::quiet_NaN();
      }
      return kind == Kind::min ? std::min(a, b) : std::max(a, b);
    default:
      if constexpr (std::is_integral_v<T>) {
        if (kind == Kind::band) return static_cast<T>(a & b);
        if (kind == Kind::bor) return static_cast<T>(a | b);
        return static_cast<T>(a ^ b);
      }
      throw InternalError("bitwise op on floating numbers");
  }
}

template <class T>
T combine_one(ReduceOp op, const std::vector<T>& values) {
  const auto scaled = [&](T value) {
    if constexpr (std::is_floating_point_v<T>) {
      if (op.kind == ReduceOp::Kind::premul_sum) return value * static_cast<T>(op.factor);
    }
    return value;
  };
  T result = scaled(values[0]);
  for (std::size_t i = 1; i < values.size(); ++i) result = apply<T>(op.kind, result, scaled(values[i]));
  if (op.kind == ReduceOp::Kind::avg) {
    if constexpr (std::is_integral_v<T>) {
      result = static_cast<T>(static_cast<long long>(result) / static_cast<long long>(values.size()));
    } else {
      result = result / static_cast<T>(values.size());
    }
  }
  return result;
}

bool combine_truth(ReduceOp::Kind kind, const std::vector<std::uint8_t>& values) {
  using Kind = ReduceOp::Kind;
  const auto truths =
      static_cast<std::size_t>(std::count_if(values.begin(), values.end(), [](int v) { return v != 0; }));
  if (kind == Kind::bxor) return truths % 2 == 1;
  const bool any = kind == Kind::sum || kind == Kind::max || kind == Kind::bor;
  return any ? truths > 0 : truths == values.size();
}

template <class T>
struct Complex {
  T real, imaginary;
};

template <class T>
Complex<T> combine_complex(ReduceOp op, const std::vector<Complex<T>>& values) {
  if (op.kind != ReduceOp::Kind::product) {
    std::vector<T> reals, imaginaries;
    for (const auto& value : values) {
      reals.push_back(value.real);
      imaginaries.push_back(value.imaginary);
    }
    return {combine_one(op, reals), combine_one(op, imaginaries)};
  }
  Complex<T> a = values[0];
  for (std::size_t i = 1; i < values.size(); ++i) {
    const Complex<T> b = values[i];
    a = {a.real * b.real - a.imaginary * b.imaginary, a.real * b.imaginary + a.imaginary * b.real};
  }
  return a;
}

// Calls `one` with the values of all inputs at each index and stores what it returns.
template <class T, class One>
void for_each_element(const std::vector<Bytes>& inputs, Bytes& output, One one) {
  std::vector<T> values(inputs.size());
  for (std::size_t i = 0; i < output.size() / sizeof(T); ++i) {
    for (std::size_t r = 0; r < inputs.size(); ++r) values[r] = load<T>(inputs[r].data(), i);
    store<T>(output.data(), i, one(values));
  }
}

template <class T>
void combine_numbers(ReduceOp op, const std::vector<Bytes>& inputs, Bytes& output) {
  for_each_element<T>(inputs, output, [&](const std::vector<T>& values) { return combine_one<T>(op, values); });
}

void combine_halves(Format format, ReduceOp op, const std::vector<Bytes>& inputs, Bytes& output) {
  std::vector<float> wide(inputs.size());
  for_each_element<std::uint16_t>(inputs, output, [&](const std::vector<std::uint16_t>& values) {
    for (std::size_t r = 0; r < values.size(); ++r) wide[r] = static_cast<float>(decode(values[r], format));
    return encode(combine_one<float>(op, wide), format);
  });
}

// A number with a full mantissa and magnitude in [1/4, 2).
double make_number(Random& random) {
  const std::uint64_t bits = random.next();
  const double magnitude = 1.0 + static_cast<double>(bits >> 12) * 0x1p-52;
  const double scale = ((bits & 2) != 0 ? 0.5 : 1) * ((bits & 4) != 0 ? 0.5 : 1);
  return (bits & 1) != 0 ? magnitude * scale : -magnitude * scale;
}

}  // namespace

std::uint64_t Random::next() {
  std::uint64_t z = state_ += 0x9e3779b97f4a7c15U;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9U;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebU;
  return z ^ (z >> 31);
}

Bytes make_input(DType dtype, std::size_t count, int rank, std::uint64_t seed) {
  Random random(seed * 1000003 + static_cast<std::uint64_t>(rank) * 65537 + static_cast<std::uint64_t>(dtype));
  Bytes bytes(count * size_of(dtype));
  if (is_floating(dtype)) {
    for (std::size_t i = 0; i < count; ++i) set_floating(bytes.data(), dtype, i, make_number(random));
  } else if (is_complex(dtype)) {
    const DType part = dtype == DType::c64 ? DType::f32 : DType::f64;
    for (std::size_t i = 0; i < 2 * count; ++i) set_floating(bytes.data(), part, i, make_number(random));
  } else if (dtype == DType::boolean) {
    constexpr int kTruths[] = {0, 1, 1, 0, 1, 2, 255, 0};
    for (std::byte& b : bytes) b = std::byte(kTruths[random.below(8)]);
  } else {
    for (std::size_t i = 0; i < bytes.size(); i += 8) {
      const std::uint64_t bits = random.next();
      std::memcpy(bytes.data() + i, &bits, std::min<std::size_t>(8, bytes.size() - i));
    }
  }
  return bytes;
}

std::vector<Bytes> make_inputs(DType dtype, std::size_t count, int ranks, std::uint64_t seed) {
  std::vector<Bytes> inputs;
  for (int rank = 0; rank < ranks; ++rank) inputs.push_back(make_input(dtype, count, rank, seed));
  return inputs;
}

Bytes combine(DType dtype, ReduceOp op, const std::vector<Bytes>& inputs) {
  Bytes output(inputs.front().size());
  switch (dtype) {
    case DType::f16:
      combine_halves(kHalf, op, inputs, output);
      break;
    case DType::bf16:
      combine_halves(kBrain, op, inputs, output);
      break;
    case DType::f32:
      combine_numbers<float>(op, inputs, output);
      break;
    case DType::f64:
      combine_numbers<double>(op, inputs, output);
      break;
    case DType::i8:
      combine_numbers<std::int8_t>(op, inputs, output);
      break;
    case DType::u8:
      combine_numbers<std::uint8_t>(op, inputs, output);
      break;
    case DType::i32:
      combine_numbers<std::int32_t>(op, inputs, output);
      break;
    case DType::i64:
      combine_numbers<std::int64_t>(op, inputs, output);
      break;
    case DType::boolean:
      for_each_element<std::uint8_t>(inputs, output, [&](const std::vector<std::uint8_t>& values) {
        return static_cast<std::uint8_t>(combine_truth(op.kind, values));
      });
      break;
    case DType::c64:
      for_each_element<Complex<float>>(inputs, output, [&](const auto& values) { return combine_complex(op, values); });
      break;
    case DType::c128:
      for_each_element<Complex<double>>(inputs, output,
                                        [&](const auto& values) { return combine_complex(op, values); });
      break;
  }
  return output;
}

std::string difference(const std::byte* actual, const Bytes& expected, DType dtype) {
  if (expected.empty() || std::memcmp(actual, expected.data(), expected.size()) == 0) return {};
  const auto first = std::mismatch(expected.begin(), expected.end(), actual).first - expected.begin();
  const std::size_t element = static_cast<std::size_t>(first) / size_of(dtype);
  std::string text = concat("element ", element, " of ", expected.size() / size_of(dtype), " differs: bytes");
  for (const std::byte* data : {actual, expected.data()}) {
    if (data != actual) text += ", expected";
    for (std::size_t b = size_of(dtype); b-- > 0;) {
      text += concat(' ', std::hex, std::to_integer<int>(data[element * size_of(dtype) + b]));
    }
    if (is_floating(dtype)) text += concat(" (", floating_at(data, dtype, element), ")");
  }
  return text;
}

double floating_at(const std::byte* data, DType dtype, std::size_t i) {
  switch (dtype) {
    case DType::f16:
      return decode(load<std::uint16_t>(data, i), kHalf);
    case DType::bf16:
      return decode(load<std::uint16_t>(data, i), kBrain);
    case DType::f32:
      return static_cast<double>(load<float>(data, i));
    default:
      return load<double>(data, i);
  }
}

void set_floating(std::byte* data, DType dtype, std::size_t i, double value) {
  switch (dtype) {
    case DType::f16:
      return store(data, i, encode(value, kHalf));
    case DType::bf16:
      return store(data, i, encode(value, kBrain));
    case DType::f32:
      return store(data, i, static_cast<float>(value));
    default:
      return store(data, i, value);
  }
}

}  // namespace gradwire::testing
