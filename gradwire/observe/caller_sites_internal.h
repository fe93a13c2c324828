// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The places from which calls are made, as numbers: each place is described once, at its first call.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "gradwire/base/mutex.h"
#include "gradwire/observe/flight_format_internal.h"
#include "gradwire/observe/flight_recorder.h"

namespace gradwire::observe {

// Thread-safe. A place that is known costs a look into a table. 0 stands for no place: the table is full.
class CallerSites {
 public:
  explicit CallerSites(format::File& file) noexcept : file_(file) {}
  CallerSites(const CallerSites&) = delete;
  CallerSites& operator=(const CallerSites&) = delete;

  std::uint32_t of_address(const void* return_address) noexcept;
  std::uint32_t of_line(std::uint64_t key, CallerLine::Describe describe, const void* context) noexcept;

 private:
  struct Entry {
    std::atomic<std::uint64_t> key{0};  // written after the number
    std::atomic<std::uint32_t> site{0};
  };
  static constexpr std::size_t kEntries = 2 * format::kSites;

  std::uint32_t known(std::uint64_t key) const noexcept;
  // Calls `fill(site)`, which may throw and returns the state of the site, for a key that is new.
  template <class Fill>
  std::uint32_t learn(std::uint64_t key, const Fill& fill) noexcept;

  format::File& file_;
  Mutex mutex_;
  std::array<Entry, kEntries> entries_;
};

}  // namespace gradwire::observe
