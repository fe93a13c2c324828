// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The environment variables that describe the job, as gradwire-run, torchrun, mpirun, srun or a user set them.
#pragma once

#include <functional>
#include <optional>
#include <string>

namespace gradwire::internal {

// How the environment is read: getenv in programs, a map in tests. Unset and empty are the same.
using ReadVariable = std::function<std::optional<std::string>(const char* name)>;

// The environment of this process.
ReadVariable process_environment();

struct JobEnvironment {
  std::string launcher;  // for messages: "gradwire-run", "torchrun", "mpirun", "PMI", "srun", "RANK and WORLD_SIZE", or
                         // "" when there is none
  std::optional<int> rank;
  std::optional<int> world_size;
  std::optional<int> local_world_size;  // ranks on this host, where the launcher says so
  std::string rank_variable;            // the variable that held the rank, or should have: for messages
  std::string world_size_variable;

  // Where no launcher was recognised: a variable that speaks of a job with other ranks; "" where there is none.
  std::string hint;
  // Whether nothing says that this process is one of several.
  bool is_alone() const { return launcher.empty() && hint.empty(); }

  // Where the ranks meet; the first field that is set counts.
  std::string rendezvous;      // a method or a path, from GRADWIRE_RENDEZVOUS
  std::string job_key;         // differs between any two jobs of this user on this host; "" where that is not known
  std::string master_address;  // an address where gradwire may listen: no other program does
  std::optional<int> master_port;
};

// Which launcher started the process, first match wins: GRADWIRE_RENDEZVOUS (gradwire-run), TORCHELASTIC_RUN_ID
// (torchrun), RANK or WORLD_SIZE (by hand, or any launcher that sets PyTorch's variables), OMPI_COMM_WORLD_RANK
// (mpirun), PMI_RANK (MPICH's and others' mpiexec), SLURM_PROCID inside a step (srun; a batch script itself is no
// rank). torchrun hosts a store of PyTorch's own protocol at MASTER_PORT, so gradwire cannot use its address. Throws
// InvalidArgument for a variable that is no number in its range. A pure function of `read`.
JobEnvironment read_job_environment(const ReadVariable& read);

}  // namespace gradwire::internal
