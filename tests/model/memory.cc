// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "tests/model/memory.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace gradwire::model {
namespace {

bool acquires(std::memory_order order) noexcept {
  return order == std::memory_order_acquire || order == std::memory_order_acq_rel || order == std::memory_order_seq_cst;
}
bool releases(std::memory_order order) noexcept {
  return order == std::memory_order_release || order == std::memory_order_acq_rel || order == std::memory_order_seq_cst;
}

}  // namespace

std::uint64_t mix(std::uint64_t a, std::uint64_t b) noexcept {
  std::uint64_t z = (a ^ (b + 0x9e3779b97f4a7c15U + (a << 6) + (a >> 2))) * 0xbf58476d1ce4e5b9U;
  z = (z ^ (z >> 29)) * 0x94d049bb133111ebU;
  return z ^ (z >> 32);
}

void Knowledge::join(const Knowledge& other) noexcept {
  for (std::size_t i = 0; i < view.size(); ++i) view[i] = std::max(view[i], other.view[i]);
  for (std::size_t i = 0; i < clock.size(); ++i) clock[i] = std::max(clock[i], other.clock[i]);
}

std::array<Knowledge, kMaxThreads> Memory::first() noexcept {
  std::array<Knowledge, kMaxThreads> made{};
  for (std::size_t i = 0; i < kMaxThreads; ++i) made[i].clock[i] = 1;
  return made;
}

int Memory::add_location(std::uint64_t value) {
  if (locations_.size() == kMaxLocations) throw std::length_error("the model has too few locations");
  locations_.emplace_back();
  locations_.back().stores.reserve(8);
  locations_.back().stores.push_back({value, {}});
  return static_cast<int>(locations_.size()) - 1;
}

int Memory::add_cell() {
  cells_.emplace_back();
  return static_cast<int>(cells_.size()) - 1;
}

int Memory::add_mutex() {
  mutexes_.emplace_back();
  return static_cast<int>(mutexes_.size()) - 1;
}

std::uint64_t Memory::load(int thread, int location, std::memory_order order) {
  Knowledge& self = threads_[index(thread)];
  Location& at = locations_[index(location)];
  std::size_t oldest = self.view[index(location)];
  if (order == std::memory_order_seq_cst) oldest = std::max(oldest, at.sequential);
  const std::size_t last = at.stores.size() - 1;
  const std::size_t chosen = last - index(explorer_.choose(static_cast<int>(last - oldest) + 1));
  self.view[index(location)] = static_cast<std::uint8_t>(chosen);
  if (order == std::memory_order_seq_cst) at.sequential = std::max(at.sequential, chosen);
  if (acquires(order)) self.join(at.stores[chosen].released);
  return at.stores[chosen].value;
}

void Memory::append(int thread, int location, std::uint64_t value, std::memory_order order,
                    const Knowledge& continued) {
  Knowledge& self = threads_[index(thread)];
  Location& at = locations_[index(location)];
  if (at.stores.size() == 200) throw std::length_error("the model has too few stores for one location");
  const auto position = static_cast<std::uint8_t>(at.stores.size());
  self.view[index(location)] = position;
  Store made{value, continued};
  made.released.view[index(location)] = position;
  if (releases(order)) {
    made.released.join(self);
    ++self.clock[index(thread)];
  }
  at.stores.push_back(made);
  if (order == std::memory_order_seq_cst) at.sequential = position;
}

void Memory::store(int thread, int location, std::uint64_t value, std::memory_order order) {
  if (threads_[index(thread)].view[index(location)] + 1U != locations_[index(location)].stores.size()) {
    explorer_.violated("two threads store to one location without an order (the model cannot tell what follows)");
  }
  append(thread, location, value, order, {});
}

void Memory::replace(int thread, int location, const std::function<std::uint64_t(std::uint64_t)>& value,
                     std::memory_order order) {
  const Store last = locations_[index(location)].stores.back();
  if (acquires(order)) threads_[index(thread)].join(last.released);
  append(thread, location, value(last.value), order, last.released);
}

void Memory::race(int thread, int other, const char* what, int cell) {
  explorer_.violated("data race: thread " + std::to_string(thread) + what + std::to_string(cell) + ", which thread " +
                     std::to_string(other) + " used at the same time");
}

void Memory::read_cell(int thread, int cell) {
  Knowledge& self = threads_[index(thread)];
  Cell& at = cells_[index(cell)];
  if (at.writer >= 0 && at.written > self.clock[index(at.writer)]) race(thread, at.writer, " reads cell ", cell);
  at.read[index(thread)] = self.clock[index(thread)];
}

void Memory::write_cell(int thread, int cell) {
  Knowledge& self = threads_[index(thread)];
  Cell& at = cells_[index(cell)];
  if (at.writer >= 0 && at.written > self.clock[index(at.writer)]) race(thread, at.writer, " writes cell ", cell);
  for (std::size_t other = 0; other < kMaxThreads; ++other) {
    if (at.read[other] > self.clock[other]) race(thread, static_cast<int>(other), " writes cell ", cell);
  }
  at = {thread, self.clock[index(thread)], {}};
}

void Memory::release_mutex(int thread, int mutex) {
  mutexes_[index(mutex)] = threads_[index(thread)];
  ++threads_[index(thread)].clock[index(thread)];
}

bool Memory::kernel_compares(int thread, int location, std::uint64_t expected) {
  Knowledge& self = threads_[index(thread)];
  Location& at = locations_[index(location)];
  const std::size_t oldest = std::max<std::size_t>(self.view[index(location)], at.woken);
  const std::size_t last = at.stores.size() - 1;
  const std::size_t chosen = last - index(explorer_.choose(static_cast<int>(last - oldest) + 1));
  self.view[index(location)] = static_cast<std::uint8_t>(chosen);
  return at.stores[chosen].value == expected;
}

void Memory::kernel_wakes(int thread, int location) {
  Location& at = locations_[index(location)];
  at.woken = std::max<std::size_t>(at.woken, threads_[index(thread)].view[index(location)]);
}

std::uint64_t Memory::hash(const std::array<Stage, kMaxThreads>& stages) const noexcept {
  const Floor floor = make_floor(stages);
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < locations_.size(); ++i) {
    const Location& at = locations_[i];
    const std::size_t oldest = floor.known.view[i];
    sum = mix(sum, (std::max(oldest, at.sequential) - oldest) << 8 | (std::max(oldest, at.woken) - oldest));
    for (std::size_t s = oldest; s < at.stores.size(); ++s) {
      sum = mix(mix(sum, at.stores[s].value), hash(at.stores[s].released, floor));
    }
  }
  for (const Cell& cell : cells_) {
    if (cell.writer >= 0) sum = mix(sum, floor.rank(index(cell.writer), cell.written) << 8 | index(cell.writer));
    for (std::size_t t = 0; t < kMaxThreads; ++t) sum = sum * 31 + floor.rank(t, cell.read[t]);
  }
  for (const Knowledge& mutex : mutexes_) sum = mix(sum, hash(mutex, floor));
  for (std::size_t t = 0; t < kMaxThreads; ++t) {
    if (stages[t] == Stage::alive || stages[t] == Stage::dead) sum = mix(sum, hash(threads_[t], floor));
  }
  return sum;
}

Memory::Floor Memory::make_floor(const std::array<Stage, kMaxThreads>& stages) const noexcept {
  Floor floor;
  floor.locations = locations_.size();
  floor.known.view.fill(255);
  floor.known.clock.fill(255);
  for (std::size_t t = 0; t < kMaxThreads; ++t) {
    if (stages[t] != Stage::alive) continue;
    for (std::size_t i = 0; i < locations_.size(); ++i) {
      floor.known.view[i] = std::min(floor.known.view[i], threads_[t].view[i]);
    }
    for (std::size_t i = 0; i < kMaxThreads; ++i) {
      floor.known.clock[i] = std::min(floor.known.clock[i], threads_[t].clock[i]);
    }
  }
  for (std::size_t i = 0; i < locations_.size(); ++i) {
    floor.known.view[i] =
        std::min<std::uint8_t>(floor.known.view[i], static_cast<std::uint8_t>(locations_[i].stores.size() - 1));
  }
  for (const Cell& cell : cells_) {
    if (cell.writer >= 0) floor.note(index(cell.writer), cell.written);
    for (std::size_t t = 0; t < kMaxThreads; ++t) floor.note(t, cell.read[t]);
  }
  for (std::size_t t = 0; t < kMaxThreads; ++t) {
    auto& marks = floor.marks[t];
    std::sort(marks.begin(), marks.begin() + floor.count[t]);
  }
  return floor;
}

void Memory::Floor::note(std::size_t thread, std::uint8_t time) noexcept {
  if (time <= known.clock[thread]) return;
  auto& mine = marks[thread];
  const auto end = mine.begin() + count[thread];
  if (std::find(mine.begin(), end, time) == end) mine[count[thread]++] = time;
}

std::uint64_t Memory::Floor::rank(std::size_t thread, std::uint8_t time) const noexcept {
  std::uint64_t rank = 0;
  for (std::size_t i = 0; i < count[thread]; ++i) rank += marks[thread][i] <= time ? 1 : 0;
  return rank;
}

std::uint64_t Memory::hash(const Knowledge& knowledge, const Floor& floor) noexcept {
  std::uint64_t sum = 0;
  std::uint64_t word = 0;
  for (std::size_t i = 0; i < floor.locations; ++i) {
    word =
        word << 8 | static_cast<std::uint64_t>(std::max(knowledge.view[i], floor.known.view[i]) - floor.known.view[i]);
    if (i % 8 == 7) sum = mix(sum, std::exchange(word, 0));
  }
  sum = mix(sum, word);
  for (std::size_t t = 0; t < kMaxThreads; ++t) sum = sum * 31 + floor.rank(t, knowledge.clock[t]);
  return sum;
}

}  // namespace gradwire::model
