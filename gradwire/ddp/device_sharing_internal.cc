// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/ddp/device_sharing_internal.h"

#include <unistd.h>

#include <bit>
#include <cstdint>
#include <random>

#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "gradwire/ddp/replica_sync_internal.h"

namespace gradwire::internal {
namespace {

// A number that no other process of the job has. A forked child has its parent's random part, and a pid of its own.
std::int64_t number_of_this_process() {
  static const std::uint64_t random = [] {
    std::random_device source;
    return std::uint64_t{source()} << 32 ^ source();
  }();
  return static_cast<std::int64_t>(random + static_cast<std::uint64_t>(getpid()));
}

}  // namespace

void require_no_shared_device(ProcessGroup& control, const std::vector<c10::Device>& devices) {
  std::uint64_t mine = 0;  // a bit for each device
  for (const c10::Device& device : devices) {
    if (device.index() >= 0 && device.index() < 63) mine |= std::uint64_t{1} << device.index();
  }
  const std::vector<std::vector<std::int64_t>> places =
      gather_integers(control, {number_of_this_process(), static_cast<std::int64_t>(mine)});
  for (std::size_t rank = 1; rank < places.size(); ++rank) {
    for (std::size_t other = 0; other < rank; ++other) {
      const auto both = static_cast<std::uint64_t>(places[rank][1] & places[other][1]);
      if (places[rank][0] != places[other][0] || both == 0) continue;
      throw UnsupportedError(concat(
          "DistributedDataParallel: ranks ", other, " and ", rank,
          " are threads of one process, and both have parameters on device ", std::countr_zero(both),
          ". autograd runs the backward passes of one device on one thread of a process, so that of rank ", rank,
          " could not begin before that of rank ", other,
          " has ended, which waits for it. Give each of these ranks a device of its own, or a process of its own."));
    }
  }
}

}  // namespace gradwire::internal
