// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/compress/memory.h"

#include <algorithm>
#include <utility>

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
  void reorder(std::string_view, std::span<const std::size_t>) override {}
  void keep() override {}
  void revert() override {}
  void hold(std::string_view) override {}
  void restore(std::string_view) override {}
  void release() override {}
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
  const auto entry = entries_.find(segment.name);
  return entry == entries_.end() ? std::span<float>() : fitting(segment, entry->second.values);
}

NamedVectors::Entry& NamedVectors::entry_of(const Segment& segment) {
  const auto found = entries_.find(segment.name);
  if (found != entries_.end()) return found->second;
  Entry& entry = entries_[std::string(segment.name)];
  entry.values.resize(segment.of_parameter());
  entry.is_new = true;
  return entry;
}

std::span<float> NamedVectors::get(const Segment& segment) {
  const MutexLock lock(mutex_);
  return fitting(segment, entry_of(segment).values);
}

std::span<float> NamedVectors::change(const Segment& segment) {
  MutexLock lock(mutex_);
  Entry& entry = entry_of(segment);
  const std::span<float> values = fitting(segment, entry.values);
  const bool is_to_keep = is_kept(entry);
  lock.unlock();
  if (is_to_keep) keep_range(entry, segment.first, segment.first + segment.count);
  return values;
}

void NamedVectors::reorder(std::string_view name, std::span<const std::size_t> from) {
  const Segment whole{name, 0, from.size()};
  if (find(whole).empty()) return;
  const std::span<float> values = change(whole);
  const std::vector<float> before(values.begin(), values.end());
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = before[from[i]];
}

// Keeps what was not kept yet: a value that changes twice is brought back as it was at first.
void NamedVectors::keep_range(Entry& entry, std::size_t first, std::size_t end) {
  entry.before.resize(entry.values.size());
  const auto copy_from = [&](std::size_t from, std::size_t to) {
    if (from < to) std::copy_n(entry.values.data() + from, to - from, entry.before.data() + from);
  };
  auto next = entry.kept.upper_bound(first);
  if (next != entry.kept.begin() && std::prev(next)->second >= first) --next;
  std::size_t from = first;
  std::size_t begin = first;
  // Each range that meets this one, and the gap before it; they become one range.
  while (next != entry.kept.end() && next->first <= end) {
    copy_from(from, next->first);
    begin = std::min(begin, next->first);
    from = std::max(from, next->second);
    next = entry.kept.erase(next);
  }
  copy_from(from, end);
  entry.kept.emplace_hint(next, begin, std::max(from, end));
}

void NamedVectors::take_back(Entries& entries) {
  std::erase_if(entries, [](const auto& item) { return item.second.is_new; });
  for (auto& [name, entry] : entries) {
    for (const auto& [first, end] : entry.kept)
      std::copy_n(entry.before.data() + first, end - first, entry.values.data() + first);
    entry.kept.clear();
  }
}

void NamedVectors::keep() {
  const MutexLock lock(mutex_);
  keeps_ = true;
  replaced_.reset();
  removed_.clear();
  for (auto& [name, entry] : entries_) {
    entry.is_new = false;
    entry.kept.clear();
  }
}

void NamedVectors::revert() {
  const MutexLock lock(mutex_);
  held_.clear();
  if (!keeps_) return;
  if (replaced_) entries_ = *std::exchange(replaced_, std::nullopt);
  take_back(entries_);
  take_back(removed_);
  entries_.merge(removed_);
}

void NamedVectors::hold(std::string_view name) {
  MutexLock lock(mutex_);
  const auto found = entries_.find(name);
  std::optional<std::vector<float>>& held = held_[std::string(name)];
  if (found == entries_.end()) {
    held.reset();
    return;
  }
  const std::vector<float>& values = found->second.values;
  lock.unlock();
  held = values;
}

// What it puts in the place of the state at keep() may be older than that state.
void NamedVectors::restore(std::string_view name) {
  const MutexLock lock(mutex_);
  const auto held = held_.find(name);
  if (held == held_.end()) return;
  if (const auto found = entries_.find(name); found != entries_.end()) {
    Entry& entry = found->second;
    if (held->second) {
      if (is_kept(entry)) keep_range(entry, 0, entry.values.size());
      entry.values = std::move(*held->second);
    } else if (is_kept(entry)) {
      removed_.insert(entries_.extract(found));
    } else {
      entries_.erase(found);
    }
  }
  held_.erase(held);
}

void NamedVectors::release() {
  const MutexLock lock(mutex_);
  held_.clear();
}

void NamedVectors::save(MemoryState& state) const {
  const MutexLock lock(mutex_);
  for (const auto& [name, entry] : entries_) state.emplace(concat(prefix_, name), entry.values);
}

void NamedVectors::replace(std::map<std::string, std::vector<float>, std::less<>> vectors) {
  Entries entries;
  for (auto& [name, vector] : vectors) entries[name].values = std::move(vector);
  const MutexLock lock(mutex_);
  held_.clear();
  entries_.swap(entries);
  if (keeps_ && !replaced_) replaced_ = std::move(entries);
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
  std::erase_if(result, [ranks](const auto& item) {
    const auto has_it = [&item](const MemoryState& rank) { return rank.contains(item.first); };
    return item.first.starts_with(kEstimatePrefix) && !std::all_of(ranks.begin(), ranks.end(), has_it);
  });
  return result;
}

std::unique_ptr<Memory> make_no_memory() { return std::make_unique<NoMemory>(); }

}  // namespace gradwire::compress
