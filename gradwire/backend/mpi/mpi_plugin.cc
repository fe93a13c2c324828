// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The backend itself: collectives of GenericChannel over the engine of messages.
#include <algorithm>
#include <sstream>
#include <utility>

#include "gradwire/backend/messages/group_channel_internal.h"
#include "gradwire/backend/mpi/job_internal.h"
#include "gradwire/backend/plugin_internal.h"
#include "gradwire/backend/rendezvous_internal.h"
#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "gradwire/base/trace.h"
#include "gradwire/store/stored_number.h"

namespace gradwire::mpi {
namespace {

constexpr Capabilities kCapabilities{.in_place_memory = false,
                                     .bitwise_equal = true,
                                     .detects_mismatch = true,
                                     .detects_death = false,
                                     .crosses_hosts = true};

std::string place_key(int rank) { return concat("mpi/place/", rank); }

// The process in the MPI job of each rank of the group. Throws InvalidArgument unless they are processes of one job.
std::vector<int> meet(const BackendOptions& options, const Job& job, Deadline deadline) {
  options.store->set(place_key(options.rank), concat(job.number(), " ", job.rank()));
  std::vector<int> processes;
  for (int rank = 0; rank < options.size; ++rank) {
    std::istringstream words(rendezvous::await_key(*options.store, place_key(rank), rank, deadline));
    std::uint64_t number = 0;
    int process = -1;
    words >> number >> process;
    if (number != job.number()) {
      throw InvalidArgument(concat("backend mpi on rank ", options.rank, ": rank ", rank,
                                   " is in another MPI job; start all ranks with one mpirun or srun"));
    }
    if (std::find(processes.begin(), processes.end(), process) != processes.end()) {
      throw InvalidArgument(concat("backend mpi: rank ", rank, " shares process ", process,
                                   " of the MPI job with another rank; each needs a process of its own"));
    }
    processes.push_back(process);
  }
  return processes;
}

std::uint64_t agree_on_number(const BackendOptions& options, Job& job, Deadline deadline) {
  const std::string key = "mpi/group";
  if (options.rank != 0)
    return static_cast<std::uint64_t>(stored_number(key, rendezvous::await_key(*options.store, key, 0, deadline)));
  const std::uint64_t number = job.new_group_number();
  options.store->set(key, std::to_string(number));
  return number;
}

std::unique_ptr<Backend> make(const BackendOptions& options) {
  trace::point("rendezvous.begin", options.rank);
  const Deadline deadline = Deadline::after(options.timeout);
  std::shared_ptr<Job> job = Job::of_this_process(options.size, deadline);
  const std::uint64_t number = agree_on_number(options, *job, deadline);
  // Should this rank fail from here on, it drops what others send it already.
  const auto group = std::make_shared<messages::Group>(
      messages::Group::Options{.backend = "mpi",
                               .engine = job->shared_engine(),
                               .keeps = job,
                               .first_channel = number * messages::Group::kChannels,  // 40 bits are the group's
                               .rank = options.rank,
                               .size = options.size,
                               .failure_of = nullptr});
  group->place(meet(options, *job, deadline));
  trace::point("rendezvous.connected", options.rank);
  auto backend = std::make_unique<messages::GroupBackend>(group, kCapabilities);
  backend->channel().barrier({deadline, {}});
  return backend;
}

}  // namespace
}  // namespace gradwire::mpi

extern "C" {
extern const gradwire::plugin::Entry gradwire_mpi_plugin;
const gradwire::plugin::Entry gradwire_mpi_plugin{GRADWIRE_VERSION, &gradwire::mpi::make};
}
