// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The one loop that every vectorised reduction is an instance of. Compiled once for each Highway target, so its guard
// is Highway's toggle and not #pragma once.
//
// A Format says how a vector of values comes from memory and goes back; an Operation says what happens to it. Four
// vectors at a time stay in registers while the sources are walked, so that memory is read once and written once, and
// four chains of additions hide each other's latency. The stores of a block come after all of its loads: a destination
// may be a source.
#if defined(GRADWIRE_KERNELS_VECTOR_LOOP_INTERNAL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef GRADWIRE_KERNELS_VECTOR_LOOP_INTERNAL_H
#undef GRADWIRE_KERNELS_VECTOR_LOOP_INTERNAL_H
#else
#define GRADWIRE_KERNELS_VECTOR_LOOP_INTERNAL_H
#endif

#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include <cstddef>

#include "gradwire/kernels/dispatch_internal.h"

HWY_BEFORE_NAMESPACE();
namespace gradwire::kernels {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// What is in memory is what is computed with.
template <class T>
struct PlainFormat {
  using Stored = T;
  using Tag = hn::ScalableTag<T>;
  static HWY_INLINE hn::Vec<Tag> load(const Stored* from) { return hn::LoadU(Tag(), from); }
  static HWY_INLINE void store(hn::Vec<Tag> value, Stored* to) { hn::StoreU(value, Tag(), to); }
  static HWY_INLINE void stream(hn::Vec<Tag> value, Stored* to) { hn::Stream(value, Tag(), to); }
};

struct Sum {
  template <class Tag, class V>
  HWY_INLINE V enter(Tag, V value) const {
    return value;
  }
  template <class Tag, class V>
  HWY_INLINE V combine(Tag, V a, V b) const {
    return hn::Add(a, b);
  }
  template <class Tag, class V>
  HWY_INLINE V leave(Tag, V value) const {
    return value;
  }
};

// Defines the operation NAME, which combines two vectors by FUNCTION and differs from Sum in nothing else. A macro,
// because Highway's functions are overloaded for each type of vector, and no template takes a set of overloads.
#define GRADWIRE_COMBINES_BY(NAME, FUNCTION)    \
  struct NAME : Sum {                           \
    template <class Tag, class V>               \
    HWY_INLINE V combine(Tag, V a, V b) const { \
      return FUNCTION(a, b);                    \
    }                                           \
  }

GRADWIRE_COMBINES_BY(Product, hn::Mul);

// `kSources` and `kDestinations` are the numbers of buffers when known at compile time, else 0.
template <class Format, class Operation, std::size_t kSources, std::size_t kDestinations, bool kStream>
HWY_NOINLINE std::size_t run_loop(const ReduceCall& call, const Operation op, std::size_t begin, std::size_t end) {
  using Stored = typename Format::Stored;
  const typename Format::Tag tag;
  const std::size_t lanes = hn::Lanes(tag);
  const std::size_t sources = kSources != 0 ? kSources : call.sources.size();
  const std::size_t destinations = kDestinations != 0 ? kDestinations : call.destinations.size();
  // Copies of the known pointers: the compiler has to assume that a vector store may change the caller's arrays.
  const void* near_sources[kSources != 0 ? kSources : 1] = {};
  void* near_destinations[kDestinations != 0 ? kDestinations : 1] = {};
  for (std::size_t s = 0; s < kSources; ++s) near_sources[s] = call.sources[s];
  for (std::size_t d = 0; d < kDestinations; ++d) near_destinations[d] = call.destinations[d];
  const void* const* from = kSources != 0 ? near_sources : call.sources.data();
  void* const* to = kDestinations != 0 ? near_destinations : call.destinations.data();

  const auto load = [&](const Stored* address) HWY_ATTR { return op.enter(tag, Format::load(address)); };
  const auto store = [&](auto value, Stored* address) HWY_ATTR {
    if constexpr (kStream) {
      Format::stream(value, address);
    } else {
      Format::store(value, address);
    }
  };

  // The vectors at `at`, and one, two and three strides after it.
  const auto reduce_four = [&](std::size_t at, std::size_t stride) HWY_ATTR {
    const Stored* source = static_cast<const Stored*>(from[0]) + at;
    auto v0 = load(source);
    auto v1 = load(source + stride);
    auto v2 = load(source + 2 * stride);
    auto v3 = load(source + 3 * stride);
    for (std::size_t s = 1; s < sources; ++s) {
      source = static_cast<const Stored*>(from[s]) + at;
      v0 = op.combine(tag, v0, load(source));
      v1 = op.combine(tag, v1, load(source + stride));
      v2 = op.combine(tag, v2, load(source + 2 * stride));
      v3 = op.combine(tag, v3, load(source + 3 * stride));
    }
    v0 = op.leave(tag, v0);
    v1 = op.leave(tag, v1);
    v2 = op.leave(tag, v2);
    v3 = op.leave(tag, v3);
    for (std::size_t d = 0; d < destinations; ++d) {
      Stored* destination = static_cast<Stored*>(to[d]) + at;
      store(v0, destination);
      store(v1, destination + stride);
      store(v2, destination + 2 * stride);
      store(v3, destination + 3 * stride);
    }
  };

  std::size_t i = begin;
  // Four pages side by side (docs/decisions/0039), where a vector is a cache line: a line that is touched twice may
  // have gone from the first-level cache in between, because lines a page apart share their place there.
  if constexpr (kSources == 2) {
    if (lanes * sizeof(Stored) == kLine) {
      constexpr std::size_t kPage = kPageBytes / sizeof(Stored);
      for (; end - i >= 4 * kPage; i += 4 * kPage) {
        for (std::size_t j = i; j < i + kPage; j += lanes) reduce_four(j, kPage);
      }
    }
  }
  for (; end - i >= 4 * lanes; i += 4 * lanes) reduce_four(i, lanes);
  for (; end - i >= lanes; i += lanes) {
    auto value = load(static_cast<const Stored*>(from[0]) + i);
    for (std::size_t s = 1; s < sources; ++s) {
      value = op.combine(tag, value, load(static_cast<const Stored*>(from[s]) + i));
    }
    value = op.leave(tag, value);
    for (std::size_t d = 0; d < destinations; ++d) store(value, static_cast<Stored*>(to[d]) + i);
  }
  // Streamed stores become visible to other threads only after a fence.
  if constexpr (kStream) hwy::FlushStream();
  return i;
}

// Copies `count` elements, which are whole vectors.
template <bool kStream, class T>
HWY_INLINE void copy_vectors(const T* HWY_RESTRICT from, T* HWY_RESTRICT to, std::size_t count) {
  const hn::ScalableTag<T> tag;
  for (std::size_t i = 0; i < count; i += hn::Lanes(tag)) {
    if constexpr (kStream) {
      hn::Stream(hn::Load(tag, from + i), tag, to + i);
    } else {
      hn::StoreU(hn::Load(tag, from + i), tag, to + i);
    }
  }
}

// The same for many buffers. Walking dozens of them in step exceeds what the processor prefetches, and buffers that
// begin at the same place of a page evict each other from the first-level cache. So a block of one buffer is added to a
// block of partial results after another, and the finished block is copied out to one destination after another.
template <class Format, class Operation, bool kStream>
HWY_NOINLINE std::size_t run_blocks(const ReduceCall& call, const Operation op, std::size_t begin, std::size_t end) {
  using Stored = typename Format::Stored;
  using Value = hn::TFromD<typename Format::Tag>;
  constexpr std::size_t kBlock = 4096 / sizeof(Value);
  HWY_ALIGN Value partial[kBlock];
  HWY_ALIGN Stored finished[kBlock];
  const typename Format::Tag tag;
  const std::size_t lanes = hn::Lanes(tag);
  const auto source = [&](std::size_t s, std::size_t at) HWY_ATTR {
    return op.enter(tag, Format::load(static_cast<const Stored*>(call.sources[s]) + at));
  };
  const std::size_t last = call.sources.size() - 1;
  std::size_t i = begin;
  for (; end - i >= kBlock; i += kBlock) {
    for (std::size_t j = 0; j < kBlock; j += lanes) hn::Store(source(0, i + j), tag, partial + j);
    for (std::size_t s = 1; s < last; ++s) {
      for (std::size_t j = 0; j < kBlock; j += lanes) {
        hn::Store(op.combine(tag, hn::Load(tag, partial + j), source(s, i + j)), tag, partial + j);
      }
    }
    for (std::size_t j = 0; j < kBlock; j += lanes) {
      auto value = hn::Load(tag, partial + j);
      if (last > 0) value = op.combine(tag, value, source(last, i + j));
      Format::store(op.leave(tag, value), finished + j);
    }
    for (void* destination : call.destinations) {
      copy_vectors<kStream>(finished, static_cast<Stored*>(destination) + i, kBlock);
    }
  }
  if constexpr (kStream) hwy::FlushStream();
  return i;
}

// From this many buffers on run_blocks() is the faster one.
inline constexpr std::size_t kManyBuffers = 24;

template <class Format, class Operation, std::size_t kSources = 0, std::size_t kDestinations = 0>
HWY_INLINE std::size_t run(const ReduceCall& call, const Operation op, std::size_t begin, std::size_t end,
                           bool streamed) {
  if (kSources == 0 && call.sources.size() + call.destinations.size() >= kManyBuffers) {
    begin = streamed ? run_blocks<Format, Operation, true>(call, op, begin, end)
                     : run_blocks<Format, Operation, false>(call, op, begin, end);
  }
  return streamed ? run_loop<Format, Operation, kSources, kDestinations, true>(call, op, begin, end)
                  : run_loop<Format, Operation, kSources, kDestinations, false>(call, op, begin, end);
}

// For the pairs that training consists of: two ranks, or one of two ranks' halves, get loops with known numbers of
// buffers.
template <class Format, class Operation>
HWY_INLINE std::size_t run_hot(const ReduceCall& call, const Operation op, std::size_t begin, std::size_t end,
                               bool streamed) {
  if (call.sources.size() == 2 && call.destinations.size() == 2) {
    return run<Format, Operation, 2, 2>(call, op, begin, end, streamed);
  }
  if (call.sources.size() == 2 && call.destinations.size() == 1) {
    return run<Format, Operation, 2, 1>(call, op, begin, end, streamed);
  }
  return run<Format, Operation>(call, op, begin, end, streamed);
}

}  // namespace HWY_NAMESPACE
}  // namespace gradwire::kernels
HWY_AFTER_NAMESPACE();

#endif
