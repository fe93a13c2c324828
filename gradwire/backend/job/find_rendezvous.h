// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The rendezvous without a group: for programs that need the store of their ranks, and make groups of their own in it.
#pragma once

#include <memory>
#include <string>

#include "gradwire/base/deadline.h"
#include "gradwire/store/store.h"

namespace gradwire {

// The options of find_rendezvous(); process_group/init.h and backend/job/job.h say what methods there are.
struct RendezvousOptions {
  std::string method = "env://";           // "env://", "file:///path" or "tcp://host:port"
  int rank = -1;                           // -1: from the method or the environment
  int world_size = -1;                     // the same
  Milliseconds timeout = kDefaultTimeout;  // of the rendezvous, and of calls on the store
};

// What a rank has found.
struct Rendezvous {
  std::shared_ptr<Store> store;  // the same keys on all ranks; the program's alone, but for those under "gradwire/"
  int rank = -1;                 // of the caller, 0 to world_size - 1
  int world_size = -1;           // the number of ranks
};

// Returns the store, the rank and the world size that the method and the environment name. Each rank calls it. The keys
// of an earlier rendezvous at the same place may still be there. Where the ranks meet in a private file, each
// rendezvous has keys of its own, and the call returns when all ranks have come. Otherwise the call waits only for the
// server of a tcp:// store. The server lives in rank 0 while that rank holds the store; init_process_group() and a Job
// at the same place use the same server meanwhile. So rank 0 keeps the store until the others are done with theirs:
// a rank that calls again earlier may reach the server that is about to end.
//
// Throws InvalidArgument (an unknown method; a missing variable, which the message names; a rank out of range; a
// timeout that is not positive; several hosts without an address), StoreError (a port in use by another program, a file
// that cannot be opened), TimeoutError (a server or a rank that did not come). May be called from any thread.
Rendezvous find_rendezvous(const RendezvousOptions& options = {});

}  // namespace gradwire
