// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The memory model of C++, which promises less than x86: a load may return any store that the model does not forbid.
//
// Each atomic location keeps all its stores, in modification order. Each thread has a view: for each location, the
// oldest store that the thread may still read. A load returns this store or any later one. A release store carries its
// thread's view, and an acquire load of this store merges the view into its own thread's. A read-modify-write reads the
// last store and continues the release sequence of that store. Sequentially consistent accesses have one order, the
// order of execution: such a load may not read a store that is older than a store that an earlier sequentially
// consistent access wrote or read.
//
// This is RC11 (Lahav and others, 2017) without two things: a store never takes effect before an earlier load (load
// buffering, which RC11 forbids too), and the order of sequentially consistent accesses never contradicts
// happens-before (C++20 allows this, for POWER). Fences are not modelled. The modification order is the order of
// execution. This excludes no behaviour if the stores of a location are ordered by happens-before or are
// read-modify-writes; the model refuses other stores as a violation.
//
// Cells are ordinary memory: two accesses of which one is a write, and which happens-before does not order, are a data
// race.
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

// The knowledge of a thread: for each location the oldest store that the thread may still read, and for each thread the
// actions that happened before.
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
  // A read-modify-write: stores the result of `value` for the old value.
  void replace(int thread, int location, const std::function<std::uint64_t(std::uint64_t)>& value,
               std::memory_order order);
  void read_cell(int thread, int cell);
  void write_cell(int thread, int cell);
  void acquire_mutex(int thread, int mutex) { threads_[index(thread)].join(mutexes_[index(mutex)]); }
  void release_mutex(int thread, int mutex);

  // The kernel's accesses to a futex's word. The kernel makes two promises: a waiter is not put to sleep for a value
  // older than a value that a waker stored before it woke; and a thread reads a word in order, inside and outside of
  // the kernel.
  bool kernel_compares(int thread, int location, std::uint64_t expected);
  void kernel_wakes(int thread, int location);
  // `thread` learns from the kernel that `other` has ended: all actions of `other` happened before.
  void learns_end_of(int thread, int other) { threads_[index(thread)].join(threads_[index(other)]); }

  enum class Stage : std::uint8_t { none, alive, done, dead };
  // A hash of everything that the rest of a run depends on, and of nothing else. The number of stores that no thread
  // can read any more does not count, and neither does the time of a thread's clock between accesses that may still
  // race.
  std::uint64_t hash(const std::array<Stage, kMaxThreads>& stages) const noexcept;

 private:
  struct Store {
    std::uint64_t value;
    Knowledge released;
  };
  struct Location {
    std::vector<Store> stores;
    std::size_t sequential = 0;  // the last store that a sequentially consistent access wrote or read
    std::size_t woken = 0;       // the newest store that a waker knew
  };
  struct Cell {
    int writer = -1;
    std::uint8_t written = 0;
    std::array<std::uint8_t, kMaxThreads> read{};
  };
  // The common knowledge of all living threads, and the relevant times of each thread that another thread may not know.
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
