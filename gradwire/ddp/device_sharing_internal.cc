// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/ddp/device_sharing_internal.h"

#include <unistd.h>

#include <cstdint>
#include <map>
#include <random>
#include <utility>
#include <vector>

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

void require_no_shared_device(ProcessGroup& control, const c10::Device& device) {
  const std::vector<std::vector<std::int64_t>> places =
      gather_integers(control, {number_of_this_process(), static_cast<std::int64_t>(device.index())});
  std::map<std::vector<std::int64_t>, std::size_t> owners;
  for (std::size_t rank = 0; rank < places.size(); ++rank) {
    const auto [owner, is_first] = owners.emplace(places[rank], rank);
    if (is_first) continue;
    throw UnsupportedError(concat(
        "DistributedDataParallel: ranks ", owner->second, " and ", rank,
        " are threads of one process, and the parameters of both are on device ", places[rank][1],
        ". autograd runs the backward passes of one device on one thread of a process, so that of rank ", rank,
        " could not begin before that of rank ", owner->second,
        " has ended, which waits for it. Give each of these ranks a device of its own, or a process of its own."));
  }
}

}  // namespace gradwire::internal
