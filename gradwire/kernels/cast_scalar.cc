// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The reference conversions: one element at a time, every pair of floating dtypes.
#include <type_traits>

#include "gradwire/kernels/dispatch_internal.h"
#include "gradwire/kernels/element_internal.h"

namespace gradwire::kernels {
namespace {

// One name for each type: f16 and bf16 have the same bits type.
struct F16 {
  using Stored = std::uint16_t;
};
struct Bf16 {
  using Stored = std::uint16_t;
};
struct F32 {
  using Stored = float;
};
struct F64 {
  using Stored = double;
};

template <class From>
auto widen(typename From::Stored stored) noexcept {
  if constexpr (std::is_same_v<From, F16>) {
    return f16_to_f32(stored);
  } else if constexpr (std::is_same_v<From, Bf16>) {
    return bf16_to_f32(stored);
  } else {
    return stored;
  }
}

template <class To, class V>
typename To::Stored narrow(V value) noexcept {
  if constexpr (std::is_same_v<To, F32> || std::is_same_v<To, F64>) {
    return static_cast<typename To::Stored>(value);
  } else {
    float single = 0;
    if constexpr (std::is_same_v<V, double>) {
      single = f64_to_f32_odd(value);
    } else {
      single = value;
    }
    return std::is_same_v<To, F16> ? f32_to_f16(single) : f32_to_bf16(single);
  }
}

template <class From, class To>
void run(const CastCall& call, std::size_t begin, std::size_t end) noexcept {
  using Stored = typename From::Stored;
  if (call.scaled) {
    // f64 on either side computes in f64, everything else in f32.
    using Value = std::conditional_t<std::is_same_v<From, F64> || std::is_same_v<To, F64>, double, float>;
    const auto factor = static_cast<Value>(call.factor);
    for (std::size_t i = begin; i < end; ++i) {
      const auto value = static_cast<Value>(widen<From>(load_element<Stored>(call.source, i)));
      store_element(call.destination, i, narrow<To>(static_cast<Value>(value * factor)));
    }
    return;
  }
  for (std::size_t i = begin; i < end; ++i) {
    store_element(call.destination, i, narrow<To>(widen<From>(load_element<Stored>(call.source, i))));
  }
}

template <class From>
void run_from(const CastCall& call, std::size_t begin, std::size_t end) noexcept {
  switch (call.to) {
    case DType::f16:
      return run<From, F16>(call, begin, end);
    case DType::bf16:
      return run<From, Bf16>(call, begin, end);
    case DType::f32:
      return run<From, F32>(call, begin, end);
    case DType::f64:
      return run<From, F64>(call, begin, end);
    default:
      break;
  }
}

}  // namespace

std::size_t cast_scalar(const CastCall& call, std::size_t begin, std::size_t end) noexcept {
  note_run("scalar");
  switch (call.from) {
    case DType::f16:
      run_from<F16>(call, begin, end);
      break;
    case DType::bf16:
      run_from<Bf16>(call, begin, end);
      break;
    case DType::f32:
      run_from<F32>(call, begin, end);
      break;
    case DType::f64:
      run_from<F64>(call, begin, end);
      break;
    default:
      break;
  }
  return end;
}

}  // namespace gradwire::kernels
