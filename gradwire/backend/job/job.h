// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// How a program without torch becomes one rank of the job that a launcher started.
//
//   gradwire::Job job;                       // gradwire-run -n 2 ./program
//   std::vector<float> numbers(1000, static_cast<float>(job.rank()));
//   job.channel().all_reduce(numbers.data(), numbers.size(), gradwire::DType::f32, gradwire::ReduceOp::sum(), {});
//
// Programs with torch call init_process_group() (process_group/init.h), which finds the other ranks in the same way.
#pragma once

#include <memory>
#include <string>

#include "gradwire/backend/backend.h"
#include "gradwire/base/deadline.h"
#include "gradwire/store/store.h"

namespace gradwire {

// `method` and `store` say where the ranks meet, `rank` and `world_size` which rank this is. By default the environment
// says both: the variables of gradwire-run (one host or several), torchrun, mpirun, srun, or RANK, WORLD_SIZE,
// MASTER_ADDR and MASTER_PORT. InitOptions (process_group/init.h) describes the methods, the variables and how jobs
// share a store. A process that no launcher started is the only rank of its job.
struct JobOptions {
  // A name of builtin_backends() (registry.h), or "auto": shm where all ranks are on one host, else ucx.
  std::string backend = "auto";
  std::string method = "env://";           // "env://", "file:///path" or "tcp://host:port"
  std::shared_ptr<Store> store = nullptr;  // used instead of `method`; needs `rank` and `world_size`
  int rank = -1;                           // -1: from the method or the environment
  int world_size = -1;                     // the same
  Milliseconds timeout = kDefaultTimeout;  // of the rendezvous
  std::string name = {};                   // two jobs that share a store at the same time need two names
};

// One rank's membership in the job. It owns the store and the backend. Destroy what was made of the backend first.
//
// Threads: all methods may be called from any thread; the channel has rules of its own (backend.h).
class Job {
 public:
  // Blocks until all ranks have come. Throws InvalidArgument (a rank out of range, a missing variable (the message
  // names it), an unknown backend or method, a timeout that is not positive); TimeoutError that names the missing
  // ranks; MismatchError on all ranks (two ranks with one number, different world sizes); PeerError (a rank died or
  // failed meanwhile); UnsupportedError (several hosts, and this gradwire or this machine has no UCX); StoreError; and
  // as make_backend() (registry.h).
  explicit Job(const JobOptions& options = {});
  ~Job();
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  int rank() const noexcept;
  int size() const noexcept;
  // The name of the backend in use: "shm".
  const std::string& backend_name() const noexcept;
  Backend& backend() noexcept;
  // The backend's own channel.
  Channel& channel() noexcept;
  // A store for the program's own keys, which all ranks of this job see and no other job does. Where the ranks met at
  // tcp://, rank 0 serves the store until the end of its Job; calls of other ranks throw a StoreError then. A Job
  // leaves about 17 keys of its own in a store of the user's (JobOptions::store).
  const std::shared_ptr<Store>& store() const noexcept;

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace gradwire
