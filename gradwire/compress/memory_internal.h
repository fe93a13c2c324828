// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The vectors that memories keep, by the name of their parameter.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <optional>

#include "gradwire/base/mutex.h"
#include "gradwire/compress/memory.h"

namespace gradwire::compress {

// Of EF21's estimates.
inline constexpr std::string_view kEstimatePrefix = "local/estimate/";

// Thread-safe but for save(), replace(), keep(), revert(), restore(), release() and the elements of a vector: callers
// that name different parameters do not meet.
class NamedVectors {
 public:
  // `prefix` begins the keys of the saved state: "local/residual/".
  explicit NamedVectors(std::string_view prefix) : prefix_(prefix) {}

  // What is kept of a segment's values, empty when there is none of that parameter yet. Throws InvalidArgument when the
  // parameter has another number of values.
  std::span<float> find(const Segment& segment) GRADWIRE_EXCLUDES(mutex_);
  // The same, made of zeros when there is none yet.
  std::span<float> get(const Segment& segment) GRADWIRE_EXCLUDES(mutex_);
  // The same for a caller that overwrites the values: keeps them for revert() first.
  std::span<float> change(const Segment& segment) GRADWIRE_EXCLUDES(mutex_);

  // As Memory::reorder().
  void reorder(std::string_view name, std::span<const std::size_t> from) GRADWIRE_EXCLUDES(mutex_);

  // As Memory::keep() and Memory::revert().
  void keep() GRADWIRE_EXCLUDES(mutex_);
  void revert() GRADWIRE_EXCLUDES(mutex_);
  // As Memory::hold(), Memory::restore() and Memory::release().
  void hold(std::string_view name) GRADWIRE_EXCLUDES(mutex_);
  void restore(std::string_view name) GRADWIRE_EXCLUDES(mutex_);
  void release() GRADWIRE_EXCLUDES(mutex_);

  const std::string& prefix() const noexcept { return prefix_; }
  void save(MemoryState& state) const GRADWIRE_EXCLUDES(mutex_);
  void replace(std::map<std::string, std::vector<float>, std::less<>> vectors) GRADWIRE_EXCLUDES(mutex_);

 private:
  struct Entry {
    std::vector<float> values;
    bool is_new = false;                      // made since keep()
    std::vector<float> before;                // as long as `values`, or empty
    std::map<std::size_t, std::size_t> kept;  // where `before` holds values: from the key up to the value
  };
  using Entries = std::map<std::string, Entry, std::less<>>;

  // True for an entry of the state at keep(), whose values revert() brings back.
  bool is_kept(const Entry& entry) const GRADWIRE_REQUIRES(mutex_) { return keeps_ && !replaced_ && !entry.is_new; }
  std::span<float> fitting(const Segment& segment, std::vector<float>& vector) const;
  Entry& entry_of(const Segment& segment) GRADWIRE_REQUIRES(mutex_);
  static void keep_range(Entry& entry, std::size_t first, std::size_t end);
  static void take_back(Entries& entries);

  const std::string prefix_;
  mutable Mutex mutex_;
  Entries entries_ GRADWIRE_GUARDED_BY(mutex_);  // its nodes do not move
  bool keeps_ GRADWIRE_GUARDED_BY(mutex_) = false;
  // Entries of the state at keep() that restore() has taken out since then.
  Entries removed_ GRADWIRE_GUARDED_BY(mutex_);
  // The state at keep(), but for those, once replace() has put another one in its place.
  std::optional<Entries> replaced_ GRADWIRE_GUARDED_BY(mutex_);
  // Of hold(); not given: there was no vector. Its nodes do not move.
  std::map<std::string, std::optional<std::vector<float>>, std::less<>> held_ GRADWIRE_GUARDED_BY(mutex_);
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
