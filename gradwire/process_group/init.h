// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// How a process becomes a rank of a job, and how it ends that.
#pragma once

#include <c10/core/Device.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gradwire/process_group/process_group.h"
#include "gradwire/store/store.h"

namespace gradwire {

// The options of init_process_group().
//
// The method says where the ranks meet:
//   env://            by the environment; the first line that matches counts
//     gradwire-run      RANK, WORLD_SIZE; the file or, on several hosts, the store that GRADWIRE_RENDEZVOUS names
//     torchrun          RANK, WORLD_SIZE; on one host a private file (torchrun's own store uses MASTER_PORT)
//     by hand           RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT; rank 0 serves a TcpStore at that address
//     mpirun            OMPI_COMM_WORLD_RANK, _SIZE, _LOCAL_SIZE; on one host a private file, else as by hand
//     mpiexec (PMI)     PMI_RANK, PMI_SIZE; as mpirun
//     srun              SLURM_PROCID, SLURM_NTASKS, SLURM_NNODES, inside a job step; as mpirun
//     no launcher       nothing of the above, nor a sign of another launcher: one rank (docs/decisions/0021)
//   file:///path      a FileStore; gradwire does not remove the file
//   tcp://host:port   a TcpStore, which rank 0 serves at that port
// file:// and tcp:// may end in "?rank=0&world_size=2". tcp:// may also have "hosted=1" (another process serves the
// store) and "prefix=place" (the part of the store that the ranks use). The rank and the world size are those of
// InitOptions, else those of the method, else, for every method, those of the environment. The ranks of a TcpStore
// share the secret that GRADWIRE_SECRET_FILE or GRADWIRE_SECRET gives, if any (store/secret.h).
//
// A private file lies in $XDG_RUNTIME_DIR/gradwire or $TMPDIR/gradwire-<uid>, a folder with mode 0700, which is
// checked. The file has a name of its own for each job. It is removed as soon as all ranks have opened it, so that
// nothing is left behind, however the job ends.
//
// One store or file serves several jobs one after another, and any number of calls of init_process_group() and
// destroy_process_group(). Each time is a generation with keys of its own, which the ranks join together. If a job died
// during its rendezvous, the next job on the same host sees that its processes are gone, and skips its generation. Two
// jobs at the same time need two stores, or two group names.
//
// The backends (docs/backends.md):
//   shm       ranks on one host
//   threads   ranks that are threads of one process
//   mpi       ranks of an MPI job
//   ucx       ranks on any hosts, over UCX
//   gloo      libtorch's Gloo
//   hybrid    shm on each host (hybrid_group.h), and between hosts ucx where every rank can use UCX, else gloo;
//             hybrid/ucx and hybrid/gloo name the engine between hosts
//   nccl      libtorch's NCCL for CUDA tensors; for tensors on the CPU, the backend that "auto" means
//   auto      nccl where `device_id` is a CUDA device; else shm where all ranks are on one host; else hybrid
// and those of the program (user_backends.h).
// Ranks are on one host when they run on one kernel and see the same network; the variable GRADWIRE_HOST, any name,
// overrides this. The log states the choice and its reason.
struct InitOptions {
  std::string backend = "auto";
  std::string method = "env://";
  std::shared_ptr<Store> store;            // used instead of `method`; needs `rank` and `world_size`
  int rank = -1;                           // -1: from the method or the environment
  int world_size = -1;                     // the same
  Milliseconds timeout = kDefaultTimeout;  // of the call with all its steps, and of the calls on the group
  std::string group_name;                  // the default group's; empty: "default"
  // The CUDA device that holds this rank's tensors. With "nccl" and no device given: the device with the number
  // LOCAL_RANK, else the device whose number is the rank modulo the number of devices. Groups of new_group() use the
  // same device.
  std::optional<at::Device> device_id = std::nullopt;
};

// All functions of this file may be called from any thread.

// Makes the default group of this process; with the backend "threads", of the calling thread, so that each rank has its
// own. Blocks until all ranks have called it. The caller and the process share the group.
//
// Throws InvalidArgument (there is a default group already, a rank out of range, a missing variable (the message names
// it), an unknown backend or method, a timeout that is not positive); TimeoutError that names the missing ranks;
// MismatchError on all ranks (two ranks with one number, different world sizes); PeerError (a rank died or failed
// meanwhile); AbortedError (the wait was interrupted); StoreError (a port is in use, other users may access a file);
// and as make_process_group(). After an error there is no default group, and the function may be called again.
std::shared_ptr<ProcessGroup> init_process_group(const InitOptions& options = {});

// Returns whether the calling thread has a default group: its own, or that of the process. A forked child does not have
// its parent's, and may make one of its own.
bool is_initialized();

// Returns true: gradwire's distributed part is always built. For programs written for PyTorch, which ask.
bool is_available();

// Returns the default group. Throws InvalidArgument when there is none.
std::shared_ptr<ProcessGroup> default_group();

// Returns a part of the store in which the ranks of the default group met, for keys of the program's own: gradwire has
// none there. Each call returns the same object; its timeout() is at first that of the default group. Throws
// InvalidArgument when there is no default group.
std::shared_ptr<Store> default_store();

// Makes a group of some ranks of the default group, numbered in the order of `ranks` (empty: all ranks). Collective
// over the default group: every rank calls it, in the same order, with the same ranks and backend. Returns null on
// ranks that are not in `ranks`. The caller and the process share the group, until destroy_process_group().
//
// An empty `backend` means the default group's backend; a `timeout` of 0 means the default group's timeout. The call
// takes the longer of the two timeouts at most: the ranks meet in the default group first. Throws InvalidArgument for
// ranks that are named twice or are not in the default group, an unknown backend, a negative timeout; MismatchError on
// all ranks when they pass different ranks or backends; AbortedError when the default group is aborted meanwhile, and
// PeerError on the ranks that wait for this one; and as make_process_group().
std::shared_ptr<ProcessGroup> new_group(const std::vector<int>& ranks = {}, const std::string& backend = "",
                                        const std::string& desc = "", Milliseconds timeout = Milliseconds{0});

// As new_group(), but collective over `ranks` alone: the others need not call it, and get null at once if they do. The
// ranks of one list make their groups in the same order; lists in another order are other lists. `backend` is compared
// with that of the first caller: throws MismatchError where it differs. A rank that does not come, or that died before,
// is noticed by the timeout only (TimeoutError), and so is one that differs.
std::shared_ptr<ProcessGroup> new_group_among(const std::vector<int>& ranks, const std::string& backend = "",
                                              const std::string& desc = "", Milliseconds timeout = Milliseconds{0});

// Makes a group with the named backend, which the caller owns, and leaves the default group alone. Collective over the
// ranks that meet in `store`. This group alone uses the keys of `store`: give each group a PrefixStore of its own.
// Either all ranks pass the same kind of device, or none passes a device.
//
// Throws InvalidArgument (a null store, an unknown backend, a timeout that is not positive, a device that is not there
// or that the backend does not serve); UnsupportedError for "gloo" in a build without Gloo's headers and for "nccl" in
// a build whose torch has no CUDA; and as make_backend().
std::shared_ptr<ProcessGroup> make_process_group(const std::string& backend, std::shared_ptr<Store> store, int rank,
                                                 int size, Milliseconds timeout = kDefaultTimeout,
                                                 const std::optional<at::Device>& device_id = std::nullopt);

// Shuts `group` down (ProcessGroup::shutdown()): waits for the calls under way, after which further calls throw
// InvalidArgument. Call abort() first where the calls under way cannot end. When `group` is null or the default group,
// shuts down the default group and all groups of new_group(); init_process_group() may then be called again. Does
// nothing when there is nothing to destroy.
void destroy_process_group(const std::shared_ptr<ProcessGroup>& group = nullptr);

}  // namespace gradwire
