// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Ranks that mpirun or srun started, over MPI's messages.
//
// MPI itself is used by a library of its own, libgradwire_mpi.so, which lies beside libgradwire_core.so and is loaded
// when the first backend is made: programs start on machines without MPI (docs/decisions/0007).
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "gradwire/backend/registry.h"

namespace gradwire {

// One rank of a group whose ranks are processes of one MPI job; called from the registry. The group may be smaller than
// the job, in any order, but all processes of the job must make their first mpi backend at about the same time: they
// make a communicator of their own then.
//
// Initialises MPI unless the program has done so, and then finalises it at the end of the process. A program that
// initialises MPI itself must ask for MPI_THREAD_MULTIPLE. MPI_Init itself cannot be given a deadline.
//
// Throws UnsupportedError when this gradwire was built without MPI, or MPI is not installed here, or was initialised
// without MPI_THREAD_MULTIPLE; InvalidArgument when this process is no rank of an MPI job that is large enough (those
// of gradwire-run are none), or the ranks are not processes of one job; TimeoutError when ranks are missing.
std::unique_ptr<Backend> make_mpi_backend(const BackendOptions& options);

// Returns whether this gradwire was built with MPI. The machine may lack MPI all the same.
bool mpi_is_built() noexcept;

// Returns why make_mpi_backend() would throw UnsupportedError in every process of this machine; nothing where MPI's
// library can be loaded. Loads it, and does not initialise MPI. Thread-safe.
std::optional<std::string> why_no_mpi();

}  // namespace gradwire
