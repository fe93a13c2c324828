// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Starting and ending: how a process becomes a rank.
#pragma once

#include <c10/core/Device.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gradwire/process_group/process_group.h"
#include "gradwire/store/store.h"

namespace gradwire {

// Where the ranks meet:
//   env://            what started the processes says; first match wins
//     gradwire-run      RANK, WORLD_SIZE, and the file or, on several hosts, the store that GRADWIRE_RENDEZVOUS names
//     torchrun          RANK, WORLD_SIZE; one host: a private file (MASTER_PORT is taken by torchrun's own store)
//     by hand           RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT: rank 0 serves a TcpStore there
//     mpirun            OMPI_COMM_WORLD_RANK, _SIZE, _LOCAL_SIZE; one host: a private file, else as by hand
//     mpiexec (PMI)     PMI_RANK, PMI_SIZE; the same
//     srun              SLURM_PROCID, SLURM_NTASKS, SLURM_NNODES inside a job step; the same
//   file:///path      a FileStore; its maker removes the file
//   tcp://host:port   rank 0 serves a TcpStore at that port
// A TcpStore's ranks share the secret that GRADWIRE_SECRET_FILE or GRADWIRE_SECRET gives (store/secret.h), if any.
// "?hosted=1" behind tcp:// says that another process serves the store there, "prefix=place" which part of it is the
// ranks'.
// "?rank=0&world_size=2" may follow file:// and tcp://. Rank and world size are those of InitOptions, else those of the
// method, else, with file:// and tcp:// too, those of what started the processes. A private file is in
// $XDG_RUNTIME_DIR/gradwire or $TMPDIR/gradwire-<uid> (mode 0700, checked), named by the job, and removed as soon as
// all ranks have it open, so that nothing is left of it after any end of the job.
//
// One store or file serves several jobs one after another, and init/destroy any number of times: each time is a
// generation with keys of its own, which ranks join together. A job that died during its rendezvous is seen as such by
// the next one on the same host (its processes are gone) and passed over. Two jobs at the same time need two stores, or
// two group names.
//
// Backends: "shm" (ranks on one host), "threads" (ranks as threads), "mpi" (ranks of an MPI job), "gloo" (libtorch's
// own), "hybrid" (shm on each host, gloo between them: hybrid_group.h), "nccl" (libtorch's own for CUDA tensors, and
// what "auto" means for those on the CPU), "auto" (nccl where `device_id` is a CUDA device; else shm where all ranks
// are on one host, hybrid where they are not). Ranks are on one host when they run on one kernel and see the same
// network; the variable GRADWIRE_HOST, a name, says otherwise. What was chosen, and why, is logged.
struct InitOptions {
  std::string backend = "auto";            // see below
  std::string method = "env://";           // see above
  std::shared_ptr<Store> store;            // instead of `method`; needs `rank` and `world_size`
  int rank = -1;                           // -1: from the method or the environment
  int world_size = -1;                     // the same
  Milliseconds timeout = kDefaultTimeout;  // of the rendezvous and of the group's calls
  std::string group_name;                  // the default group's; empty: "default"
  // The CUDA device that this rank's tensors are on. Not given, with "nccl": the one with the number LOCAL_RANK, else
  // with that of the rank modulo the number of devices. Groups that new_group() makes use the same.
  std::optional<at::Device> device_id = std::nullopt;
};

// Makes the default group of this process (with the backend "threads": of this thread, so that ranks as threads each
// have their own); blocks until all ranks are there. Throws InvalidArgument (already initialised; a rank out of range;
// a variable missing, which one; an unknown backend or method), TimeoutError that names the missing ranks,
// MismatchError on all ranks (two with one number, different world sizes), PeerError (a rank died meanwhile),
// StoreError (a port in use, a file that other users may touch).
std::shared_ptr<ProcessGroup> init_process_group(const InitOptions& options = {});

// Whether this thread has a default group. False in a forked child, which may make one of its own.
bool is_initialized();
// Whether gradwire's distributed part is built in: always true; PyTorch programs ask.
bool is_available();

// The default group. Throws InvalidArgument when there is none.
std::shared_ptr<ProcessGroup> default_group();

// A group of some ranks of the default group, in the order of `ranks` (empty: all). Collective over the default group:
// every rank calls it, in the same order and with the same ranks (MismatchError on all otherwise). Null on ranks that
// are not part of it. `backend` empty: the default group's; `timeout` 0: the default group's. Throws InvalidArgument
// for ranks that are named twice or are not there.
std::shared_ptr<ProcessGroup> new_group(const std::vector<int>& ranks = {}, const std::string& backend = "",
                                        const std::string& desc = "", Milliseconds timeout = Milliseconds{0});

// Makes a group out of a backend by name, without touching the default group: the building block of the above. The keys
// of `store` are this group's alone: give each group a PrefixStore of its own. Throws as make_backend() does;
// UnsupportedError for "gloo" in a build without Gloo's headers and for "nccl" in one whose torch has no CUDA;
// InvalidArgument where the backend does not serve `device_id`, or it is not there. All ranks name a kind of device, or
// none does.
std::shared_ptr<ProcessGroup> make_process_group(const std::string& backend, std::shared_ptr<Store> store, int rank,
                                                 int size, Milliseconds timeout = kDefaultTimeout,
                                                 const std::optional<at::Device>& device_id = std::nullopt);

// Shuts `group` down, or, when null or the default group, the default group and all that new_group made: waits for what
// is under way (abort() first where that cannot end), and refuses further calls. init_process_group works again
// afterwards. Does nothing when there is nothing to destroy.
void destroy_process_group(const std::shared_ptr<ProcessGroup>& group = nullptr);

}  // namespace gradwire
