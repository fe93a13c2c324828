// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The reference reduction: one element at a time, every dtype and op.
#include <complex>
#include <type_traits>

#include "gradwire/kernels/dispatch_internal.h"
#include "gradwire/kernels/element_internal.h"

namespace gradwire::kernels {
namespace {

// What an element is in memory (Stored) and while it is being combined (Value).
template <class T>
struct Plain {
  using Stored = T;
  using Value = T;
  static Value widen(Stored stored) noexcept { return stored; }
  static Stored narrow(Value value) noexcept { return value; }
};
struct Half {
  using Stored = std::uint16_t;
  using Value = float;
  static Value widen(Stored stored) noexcept { return f16_to_f32(stored); }
  static Stored narrow(Value value) noexcept { return f32_to_f16(value); }
};
struct Brain {
  using Stored = std::uint16_t;
  using Value = float;
  static Value widen(Stored stored) noexcept { return bf16_to_f32(stored); }
  static Stored narrow(Value value) noexcept { return f32_to_bf16(value); }
};
struct Boolean {
  using Stored = std::uint8_t;
  using Value = bool;
  static Value widen(Stored stored) noexcept { return stored != 0; }
  static Stored narrow(Value value) noexcept { return value ? 1 : 0; }
};
// Not std::complex: its product has a slow path for NaN that the vector loops would have to repeat.
template <class T>
struct Pair {
  T real;
  T imaginary;
};
template <class T>
constexpr bool kIsPair = false;
template <class T>
constexpr bool kIsPair<Pair<T>> = true;

template <class V>
V add(V a, V b) noexcept {
  if constexpr (kIsPair<V>) {
    return {a.real + b.real, a.imaginary + b.imaginary};
  } else if constexpr (std::is_integral_v<V>) {
    // Unsigned arithmetic wraps, also where the signed type would be promoted or overflow.
    return static_cast<V>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
  } else {
    return a + b;
  }
}

template <class V>
V multiply(V a, V b) noexcept {
  if constexpr (kIsPair<V>) {
    return {a.real * b.real - a.imaginary * b.imaginary, a.real * b.imaginary + a.imaginary * b.real};
  } else if constexpr (std::is_integral_v<V>) {
    return static_cast<V>(static_cast<std::uint64_t>(a) * static_cast<std::uint64_t>(b));
  } else {
    return a * b;
  }
}

struct Sum {
  explicit Sum(const ReduceCall&) noexcept {}
  template <class V>
  V enter(V value) const noexcept {
    return value;
  }
  template <class V>
  V combine(V a, V b) const noexcept {
    return add(a, b);
  }
  template <class V>
  V leave(V value) const noexcept {
    return value;
  }
};

struct Average : Sum {
  explicit Average(const ReduceCall& call) noexcept : Sum(call), count(static_cast<int>(call.sources.size())) {}
  template <class V>
  V leave(V value) const noexcept {
    if constexpr (kIsPair<V>) {
      return {leave(value.real), leave(value.imaginary)};
    } else if constexpr (std::is_integral_v<V>) {
      return static_cast<V>(value / static_cast<std::int64_t>(count));
    } else {
      return value / static_cast<V>(count);
    }
  }
  int count;
};

struct PremulSum : Sum {
  explicit PremulSum(const ReduceCall& call) noexcept : Sum(call), factor(call.op.factor) {}
  template <class V>
  V enter(V value) const noexcept {
    if constexpr (kIsPair<V>) {
      return {enter(value.real), enter(value.imaginary)};
    } else {
      return value * static_cast<V>(factor);
    }
  }
  double factor;
};

struct Product : Sum {
  using Sum::Sum;
  template <class V>
  V combine(V a, V b) const noexcept {
    return multiply(a, b);
  }
};

// Of equal elements (0 and -0) the first stays; a NaN stays, and replaces a number.
struct Min : Sum {
  using Sum::Sum;
  template <class V>
  V combine(V a, V b) const noexcept {
    return b < a || b != b ? b : a;
  }
};
struct Max : Sum {
  using Sum::Sum;
  template <class V>
  V combine(V a, V b) const noexcept {
    return a < b || b != b ? b : a;
  }
};

struct And : Sum {
  using Sum::Sum;
  template <class V>
  V combine(V a, V b) const noexcept {
    return static_cast<V>(a & b);
  }
};
struct Or : Sum {
  using Sum::Sum;
  template <class V>
  V combine(V a, V b) const noexcept {
    return static_cast<V>(a | b);
  }
};
struct Xor : Sum {
  using Sum::Sum;
  template <class V>
  V combine(V a, V b) const noexcept {
    return static_cast<V>(a ^ b);
  }
};

template <class Element, class Op>
void run(const ReduceCall& call, std::size_t begin, std::size_t end) noexcept {
  using Stored = typename Element::Stored;
  const Op op(call);
  for (std::size_t i = begin; i < end; ++i) {
    auto value = op.enter(Element::widen(load_element<Stored>(call.sources[0], i)));
    for (std::size_t s = 1; s < call.sources.size(); ++s) {
      value = op.combine(value, op.enter(Element::widen(load_element<Stored>(call.sources[s], i))));
    }
    const Stored result = Element::narrow(op.leave(value));
    for (void* destination : call.destinations) store_element(destination, i, result);
  }
}

using Kind = ReduceOp::Kind;

template <class Element>
void run_float(const ReduceCall& call, std::size_t begin, std::size_t end) noexcept {
  switch (call.op.kind) {
    case Kind::sum:
      return run<Element, Sum>(call, begin, end);
    case Kind::avg:
      return run<Element, Average>(call, begin, end);
    case Kind::product:
      return run<Element, Product>(call, begin, end);
    case Kind::premul_sum:
      return run<Element, PremulSum>(call, begin, end);
    default:
      break;
  }
  if constexpr (!kIsPair<typename Element::Value>) {
    if (call.op.kind == Kind::min) return run<Element, Min>(call, begin, end);
    if (call.op.kind == Kind::max) return run<Element, Max>(call, begin, end);
  }
}

template <class T>
void run_integer(const ReduceCall& call, std::size_t begin, std::size_t end) noexcept {
  switch (call.op.kind) {
    case Kind::sum:
      return run<Plain<T>, Sum>(call, begin, end);
    case Kind::avg:
      return run<Plain<T>, Average>(call, begin, end);
    case Kind::product:
      return run<Plain<T>, Product>(call, begin, end);
    case Kind::min:
      return run<Plain<T>, Min>(call, begin, end);
    case Kind::max:
      return run<Plain<T>, Max>(call, begin, end);
    case Kind::band:
      return run<Plain<T>, And>(call, begin, end);
    case Kind::bor:
      return run<Plain<T>, Or>(call, begin, end);
    case Kind::bxor:
      return run<Plain<T>, Xor>(call, begin, end);
    default:
      break;
  }
}

void run_boolean(const ReduceCall& call, std::size_t begin, std::size_t end) noexcept {
  switch (call.op.kind) {
    case Kind::sum:
    case Kind::max:
    case Kind::bor:
      return run<Boolean, Or>(call, begin, end);
    case Kind::product:
    case Kind::min:
    case Kind::band:
      return run<Boolean, And>(call, begin, end);
    case Kind::bxor:
      return run<Boolean, Xor>(call, begin, end);
    default:
      break;
  }
}

}  // namespace

std::size_t reduce_scalar(const ReduceCall& call, std::size_t begin, std::size_t end, bool /*streamed*/) noexcept {
  note_run("scalar");
  switch (call.dtype) {
    case DType::f16:
      run_float<Half>(call, begin, end);
      break;
    case DType::bf16:
      run_float<Brain>(call, begin, end);
      break;
    case DType::f32:
      run_float<Plain<float>>(call, begin, end);
      break;
    case DType::f64:
      run_float<Plain<double>>(call, begin, end);
      break;
    case DType::i8:
      run_integer<std::int8_t>(call, begin, end);
      break;
    case DType::u8:
      run_integer<std::uint8_t>(call, begin, end);
      break;
    case DType::i32:
      run_integer<std::int32_t>(call, begin, end);
      break;
    case DType::i64:
      run_integer<std::int64_t>(call, begin, end);
      break;
    case DType::boolean:
      run_boolean(call, begin, end);
      break;
    case DType::c64:
      run_float<Plain<Pair<float>>>(call, begin, end);
      break;
    case DType::c128:
      run_float<Plain<Pair<double>>>(call, begin, end);
      break;
  }
  return end;
}

}  // namespace gradwire::kernels
