// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The vectors that memories keep, by the name of their parameter.
#pragma once

#include <algorithm>
#include <initializer_list>

#include "gradwire/base/mutex.h"
#include "gradwire/compress/memory.h"

namespace gradwire::compress {

// Thread-safe but for save(), swap() and the elements of a vector: callers that name different parameters do not meet.
class NamedVectors {
 public:
  // `prefix` begins the keys of the saved state: "local/residual/".
  explicit NamedVectors(std::string_view prefix) : prefix_(prefix) {}

  // What is kept of a segment's values, empty when there is none of that parameter yet. Throws InvalidArgument when the
  // parameter has another number of values.
  std::span<float> find(const Segment& segment) GRADWIRE_EXCLUDES(mutex_);
  // The same, made of zeros when there is none yet.
  std::span<float> get(const Segment& segment) GRADWIRE_EXCLUDES(mutex_);

  const std::string& prefix() const noexcept { return prefix_; }
  void save(MemoryState& state) const GRADWIRE_EXCLUDES(mutex_);
  void replace(std::map<std::string, std::vector<float>, std::less<>> vectors) noexcept GRADWIRE_EXCLUDES(mutex_);

 private:
  std::span<float> fitting(const Segment& segment, std::vector<float>& vector) const;

  const std::string prefix_;
  mutable Mutex mutex_;
  std::map<std::string, std::vector<float>, std::less<>> vectors_ GRADWIRE_GUARDED_BY(mutex_);  // its nodes do not move
};

// Memory::load() for a memory that keeps `kinds`. `name` is the memory's, for messages.
void load_vectors(const MemoryState& state, std::string_view name, std::initializer_list<NamedVectors*> kinds);

inline void copy(std::span<const float> from, std::span<float> to) noexcept {
  if (from.data() != to.data()) std::copy(from.begin(), from.end(), to.begin());
}

// Copies the values that no segment covers, and may copy others.
void copy_uncovered(std::span<const Segment> segments, std::span<const float> gradient, std::span<float> values);

inline std::span<float> part_of(std::span<float> values, const Segment& segment) noexcept {
  return values.subspan(segment.offset, segment.count);
}
inline std::span<const float> part_of(std::span<const float> values, const Segment& segment) noexcept {
  return values.subspan(segment.offset, segment.count);
}

}  // namespace gradwire::compress
