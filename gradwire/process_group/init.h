// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Starting and ending: how a process becomes a rank.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "gradwire/process_group/process_group.h"
#include "gradwire/store/store.h"

namespace gradwire {

struct InitOptions {
  // "auto" (shm on one host), "shm", "threads", or any name in the table of backends.
  std::string backend = "auto";
  // "env://" reads what gradwire-run, torchrun, mpirun and srun set; "file:///path", "tcp://host:port" (rank 0 serves) name a store, with `rank` and `world_size`.
  std::string method = "env://";
  std::shared_ptr<Store> store;  // instead of `method`
  int rank = -1;                 // -1: from the environment, or "?rank=" in the method
  int world_size = -1;
  Milliseconds timeout = kDefaultTimeout;  // of the rendezvous and of the group's calls
  std::string group_name;
};

// Makes the default group of this process (with the backend "threads": of this thread, so that ranks as threads each have their own); blocks until all ranks are there. Throws InvalidArgument (already initialised; a rank out of
// range; a variable missing, which one), TimeoutError, MismatchError (two ranks with one number, different world sizes), StoreError (a port in use).
std::shared_ptr<ProcessGroup> init_process_group(const InitOptions& options = {});

bool is_initialized();
// Whether gradwire's distributed part is built in: always true; PyTorch programs ask.
bool is_available();

// The default group. Throws InvalidArgument when there is none.
std::shared_ptr<ProcessGroup> default_group();

// A group of some ranks of the default group, in the order of `ranks` (empty: all). Collective over the default group: every rank calls it, in the same order. Null on ranks that are not part of it.
std::shared_ptr<ProcessGroup> new_group(const std::vector<int>& ranks = {}, const std::string& backend = "",
                                        const std::string& desc = "", Milliseconds timeout = Milliseconds{0});

// Makes a group out of a backend by name, without touching the default group: the building block of the above.
std::shared_ptr<ProcessGroup> make_process_group(const std::string& backend, std::shared_ptr<Store> store, int rank, int size,
                                                 Milliseconds timeout = kDefaultTimeout);

// Lets go of `group`, or, when null, of the default group and of all that new_group made. init_process_group works again afterwards.
void destroy_process_group(const std::shared_ptr<ProcessGroup>& group = nullptr);

}  // namespace gradwire
