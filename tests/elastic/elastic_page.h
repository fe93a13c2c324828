// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Memory that the test and the workers of an elastic job share: how far the job may go, and where each worker is.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <stdexcept>
#include <string>

#include "gradwire/base/os_handles.h"

namespace gradwire::testing {

// tests/faults/healthy.py reads it too.
struct ElasticPage {
  // The first step that a worker does in an epoch.
  struct Entry {
    std::atomic<std::int64_t> pid{0};  // set last
    std::int64_t epoch = 0;
    std::int64_t step = 0;
    std::int64_t size = 0;
    std::int64_t nanoseconds = 0;  // when it began; the monotonic clock, which the host's processes share
    std::int64_t pause = 0;        // since the end of this worker's last step, in nanoseconds; 0: it had done none
    // What this worker lost in the epoch before and by the change, in nanoseconds: the time of each step but the
    // first above the median, and the pause.
    std::int64_t lost = 0;
    std::int64_t median = 0;  // the time of a step in the epoch before
  };
  std::atomic<std::int64_t> budget{0};  // workers wait before this step
  std::atomic<std::int64_t> newest_step{0};
  std::atomic<std::int64_t> entry_count{0};
  std::atomic<std::int64_t> followed{0};  // the members' steps that newcomers began while they followed
  std::array<Entry, 20000> entries;
};

// The page in the file `path`, which is made when it is missing.
class SharedElasticPage {
 public:
  explicit SharedElasticPage(const std::string& path) {
    const UniqueFd file(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    if (!file || ::ftruncate(file.get(), sizeof(ElasticPage)) != 0) throw std::runtime_error("no file for the page");
    mapping_ = Mapping::of_file(file.get(), sizeof(ElasticPage));
  }
  // Zeroed memory is a page at its beginning.
  ElasticPage* operator->() const noexcept { return reinterpret_cast<ElasticPage*>(mapping_.data()); }

 private:
  Mapping mapping_;
};

}  // namespace gradwire::testing
