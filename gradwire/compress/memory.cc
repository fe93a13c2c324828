// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/compress/memory.h"

#include <algorithm>

#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "gradwire/compress/memory_internal.h"

namespace gradwire::compress {
namespace {

class NoMemory final : public Memory {
 public:
  std::string name() const override { return "none"; }
  bool remembers() const noexcept override { return false; }
  void before(std::span<const Segment>, int, std::span<const float> gradient, std::span<float> values) override {
    copy(gradient, values);
  }
  void after(std::span<const Segment>, std::span<const float>, std::span<const float>, std::span<float>) override {}
  MemoryState save() const override { return {}; }
  void load(const MemoryState& state) override { load_vectors(state, name(), {}); }
  void clear() override {}
};

}  // namespace

std::span<float> NamedVectors::fitting(const Segment& segment, std::vector<float>& vector) const {
  if (vector.size() == segment.of_parameter()) return std::span(vector).subspan(segment.first, segment.count);
  throw InvalidArgument(concat("compression memory: parameter '", segment.name, "' has ", segment.of_parameter(),
                               " values, but ", prefix_, segment.name, " has ", vector.size(),
                               "; clear() the memory, or load the state of this model"));
}

std::span<float> NamedVectors::find(const Segment& segment) {
  const MutexLock lock(mutex_);
  const auto entry = vectors_.find(segment.name);
  return entry == vectors_.end() ? std::span<float>() : fitting(segment, entry->second);
}

std::span<float> NamedVectors::get(const Segment& segment) {
  const MutexLock lock(mutex_);
  const auto entry = vectors_.find(segment.name);
  if (entry != vectors_.end()) return fitting(segment, entry->second);
  return fitting(segment,
                 vectors_.emplace(std::string(segment.name), std::vector<float>(segment.of_parameter())).first->second);
}

void NamedVectors::save(MemoryState& state) const {
  const MutexLock lock(mutex_);
  for (const auto& [name, vector] : vectors_) state.emplace(concat(prefix_, name), vector);
}

void NamedVectors::replace(std::map<std::string, std::vector<float>, std::less<>> vectors) noexcept {
  const MutexLock lock(mutex_);
  vectors_.swap(vectors);
}

void copy_uncovered(std::span<const Segment> segments, std::span<const float> gradient, std::span<float> values) {
  std::size_t covered = 0;
  for (const Segment& segment : segments) covered += segment.count;
  if (covered < values.size()) copy(gradient, values);  // the others too: segments come in any order
}

void load_vectors(const MemoryState& state, std::string_view name, std::initializer_list<NamedVectors*> kinds) {
  std::vector<std::map<std::string, std::vector<float>, std::less<>>> loaded(kinds.size());
  for (const auto& [key, vector] : state) {
    std::size_t which = 0;
    for (const NamedVectors* kind : kinds) {
      if (key.starts_with(kind->prefix())) break;
      ++which;
    }
    if (which == kinds.size()) {
      throw InvalidArgument(
          concat("compression memory ", name, " keeps no '", key, "'; is it another memory's state?"));
    }
    loaded[which].emplace(key.substr(kinds.begin()[which]->prefix().size()), vector);
  }
  for (std::size_t which = 0; which < kinds.size(); ++which) kinds.begin()[which]->replace(std::move(loaded[which]));
}

MemoryState average_local(std::span<const MemoryState> ranks) {
  if (ranks.empty()) throw InvalidArgument("average_local: there is no rank's state");
  MemoryState result;
  for (const MemoryState& rank : ranks) {
    for (const auto& [key, vector] : rank) {
      auto& target = result.emplace(key, std::vector<float>()).first->second;
      if (target.empty()) target.resize(vector.size());
      if (target.size() != vector.size()) {
        throw InvalidArgument(
            concat("average_local: ranks have ", target.size(), " and ", vector.size(), " values of '", key, "'"));
      }
      if (!key.starts_with(kLocalPrefix)) {
        target = vector;
        continue;
      }
      const auto share = 1 / static_cast<float>(ranks.size());
      for (std::size_t i = 0; i < vector.size(); ++i) target[i] += share * vector[i];
    }
  }
  return result;
}

std::unique_ptr<Memory> make_no_memory() { return std::make_unique<NoMemory>(); }

}  // namespace gradwire::compress
