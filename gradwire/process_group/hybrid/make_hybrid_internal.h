// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Makes a hybrid group of shm and an engine that crosses hosts.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "gradwire/base/deadline.h"
#include "gradwire/process_group/process_group.h"
#include "gradwire/store/store.h"

namespace gradwire::internal {

// What crosses hosts.
enum class Crossing {
  any,  // ucx where every rank can load UCX, else gloo
  ucx,
  gloo,
};

// The names of the backends that are hybrid groups.
inline constexpr const char* kHybrid = "hybrid";
inline constexpr const char* kHybridGloo = "hybrid/gloo";
inline constexpr const char* kHybridUcx = "hybrid/ucx";
// What crosses hosts in a hybrid group of this name; nothing where `backend` is another one.
std::optional<Crossing> crossing_of(std::string_view backend);

// Chooses for Crossing::any: ucx unless a rank cannot use UCX; `why_no_ucx` says why this rank cannot (why_no_ucx() of
// ucx_backend.h). In a build without Gloo, always ucx. Collective in `store`; all ranks come to the same result. Throws
// as exchange_hosts() (backend/job/hosts_internal.h) does.
Crossing choose_crossing(Store& store, int rank, int size, const std::optional<std::string>& why_no_ucx,
                         Deadline deadline);

// Makes a HybridGroup by `deadline`: shm on each host, `crossing` between hosts. `hosts` is the result of
// exchange_hosts(). Collective in `store`; all ranks name the same `crossing`. The caller owns the result. Throws as
// make_process_group() does for "shm" and for the engine that crosses hosts, with peers() in the numbers of the whole
// group; a failure on one host ends the call on the other hosts, too.
std::shared_ptr<ProcessGroup> make_hybrid_group(Deadline deadline, const std::shared_ptr<Store>& store, int rank,
                                                const std::vector<std::string>& hosts, Crossing crossing,
                                                Milliseconds timeout);

}  // namespace gradwire::internal
