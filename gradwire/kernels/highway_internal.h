// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Which of Highway's targets the vector loops are compiled for. Include it before any header of Highway.
//
// A target costs compile time and code, so there is one for each step that matters: SSE4 (any x86-64 of the last
// fifteen years), AVX2 and AVX-512. The build's own flags are older than SSE4, so Highway is told to take that as the
// least it compiles for; nothing runs before the processor was asked. Elsewhere it is what the compiler's flags allow.
#pragma once

#if defined(__x86_64__)
#define HWY_BASELINE_TARGETS HWY_SSE4
#endif

#include <hwy/detect_targets.h>
#include <hwy/targets.h>

#include <cstdint>

// &N_TARGET::FUNCTION for a target bit, or null. For use under HWY_ONCE, in the namespace that holds the targets'
// namespaces.
#if defined(__x86_64__)
#define GRADWIRE_FOR_TARGET(target, FUNCTION)         \
  ((target) == HWY_AVX3   ? HWY_CHOOSE_AVX3(FUNCTION) \
   : (target) == HWY_AVX2 ? HWY_CHOOSE_AVX2(FUNCTION) \
   : (target) == HWY_SSE4 ? HWY_CHOOSE_SSE4(FUNCTION) \
                          : nullptr)
#else
#define GRADWIRE_FOR_TARGET(target, FUNCTION) ((target) == HWY_STATIC_TARGET ? &HWY_STATIC_DISPATCH(FUNCTION) : nullptr)
#endif

namespace gradwire::kernels {

// Best first.
#if defined(__x86_64__)
inline constexpr std::int64_t kHighwayTargets[] = {HWY_AVX3, HWY_AVX2, HWY_SSE4};
#else
inline constexpr std::int64_t kHighwayTargets[] = {HWY_STATIC_TARGET};
#endif

// What `loops`, a function of one target, returns; null where there is no such function.
template <class Loops>
const Loops* loops_of(const Loops* (*loops)() noexcept) noexcept {
  return loops == nullptr ? nullptr : loops();
}

}  // namespace gradwire::kernels
