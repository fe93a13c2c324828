// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Memory as C++ promises it, which is less than what x86 does: a load may return any store that it is not forbidden to.
//
// Each atomic location keeps all its stores, in modification order. Each thread has a view: the oldest store of each
// location that it may still read. A load chooses any store from there on; a release store carries its thread's view,
// an acquire load of it takes that view over; read-modify-writes read the last store and continue its release sequence.
// Sequentially consistent accesses have one order, that of execution: such a load may not read a store older than one
// that an earlier sequentially consistent access wrote or read.
//
// This is RC11 (Lahav and others, 2017) without two things: stores that take effect before loads in front of them (load
// buffering, which RC11 forbids too), and orders of sequentially consistent accesses that contradict happens-before
// (which C++20 allows for the sake of POWER). Fences are not modelled. Modification order is that of execution, which
// loses nothing where the stores of a location are ordered by happens-before or are read-modify-writes; anything else
// is refused as a violation.
//
// Cells are ordinary memory: two accesses, one of them a write, that happens-before does not order are a data race.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tests/model/explorer.h"

namespace gradwire::model {

inline constexpr std::size_t kMaxLocations = 64;
inline constexpr std::size_t kMaxThreads = 8;

std::uint64_t mix(std::uint64_t a, std::uint64_t b) noexcept;

// What a thread knows: of each location the oldest store it may still read, of each thread what happened before.
struct Knowledge {
  std::array<std::uint8_t, kMaxLocations> view{};
  std::array<std::uint8_t, kMaxThreads> clock{};
  void join(const Knowledge& other) noexcept;
};

class Memory {
 public:
  explicit Memory(Explorer& explorer) : explorer_(explorer) {}

  int add_location(std::uint64_t value);
  int add_cell();
  int add_mutex();

  // Accesses by `thread`.
  std::uint64_t load(int thread, int location, std::memory_order order);
  void store(int thread, int location, std::uint64_t value, std::memory_order order);
  // A read-modify-write: stores `value` of what was there.
  void replace(int thread, int location, const std::function<std::uint64_t(std::uint64_t)>& value,
               std::memory_order order);
  void read_cell(int thread, int cell);
  void write_cell(int thread, int cell);
  void acquire_mutex(int thread, int mutex) { threads_[index(thread)].join(mutexes_[index(mutex)]); }
  void release_mutex(int thread, int mutex);

  // What the kernel does with a futex's word. It promises that the value that a waiter is put to sleep for is not older
  // than any that a waker had stored before it woke; and that a thread reads a word in order, in and out of the kernel.
  bool kernel_compares(int thread, int location, std::uint64_t expected);
  void kernel_wakes(int thread, int location);
  // `thread` learns from the kernel that `other` has ended: all that it did happened before.
  void learns_end_of(int thread, int other) { threads_[index(thread)].join(threads_[index(other)]); }

  enum class Stage : std::uint8_t { none, alive, done, dead };
  // Of all that the rest of a run depends on, and of nothing else: how many stores a location had before all that may
  // still be read does not matter, nor how far a thread's clock went between accesses that may still race.
  std::uint64_t hash(const std::array<Stage, kMaxThreads>& stages) const noexcept;

 private:
  struct Store {
    std::uint64_t value;
    Knowledge released;
  };
  struct Location {
    std::vector<Store> stores;
    std::size_t sequential = 0;  // the last that a sequentially consistent access wrote or read
    std::size_t woken = 0;       // the newest that a waker knew
  };
  struct Cell {
    int writer = -1;
    std::uint8_t written = 0;
    std::array<std::uint8_t, kMaxThreads> read{};
  };
  // What all living threads know, and the times of each thread that someone may not know and that matter.
  struct Floor {
    Knowledge known;
    std::size_t locations = 0;
    std::array<std::array<std::uint8_t, 64>, kMaxThreads> marks;
    std::array<std::uint8_t, kMaxThreads> count{};
    void note(std::size_t thread, std::uint8_t time) noexcept;
    std::uint64_t rank(std::size_t thread, std::uint8_t time) const noexcept;
  };
  Floor make_floor(const std::array<Stage, kMaxThreads>& stages) const noexcept;
  static std::uint64_t hash(const Knowledge& knowledge, const Floor& floor) noexcept;
  static std::size_t index(int i) noexcept { return static_cast<std::size_t>(i); }
  void append(int thread, int location, std::uint64_t value, std::memory_order order, const Knowledge& continued);
  void race(int thread, int other, const char* what, int cell);

  Explorer& explorer_;
  std::vector<Location> locations_;
  std::vector<Cell> cells_;
  std::vector<Knowledge> mutexes_;
  std::array<Knowledge, kMaxThreads> threads_ = first();
  static std::array<Knowledge, kMaxThreads> first() noexcept;
};

}  // namespace gradwire::model
