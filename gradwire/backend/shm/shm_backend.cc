// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/backend/shm/shm_backend.h"

#include <utility>

#include "gradwire/backend/shared/shared_backend_internal.h"
#include "gradwire/backend/shm/meeting_internal.h"
#include "gradwire/base/trace.h"

namespace gradwire {

std::unique_ptr<Backend> make_shm_backend(const BackendOptions& options) {
  trace::point("rendezvous.begin", options.rank);
  const Deadline deadline = Deadline::after(options.timeout);
  shm::Members members = options.rank == 0 ? shm::meet_as_root(options, deadline) : shm::meet_root(options, deadline);
  trace::point("rendezvous.connected", options.rank);
  auto world = std::make_shared<shm::ShmWorld>(options.rank, options.size, std::move(members.sockets),
                                               std::move(members.peers), members.may_spin);
  return std::make_unique<shared::SharedBackend>("shm", std::move(world), members.region, deadline);
}

}  // namespace gradwire
