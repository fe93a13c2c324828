// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/backend/registry.h"

#include <array>

#include "gradwire/backend/mpi/mpi_backend.h"
#include "gradwire/backend/rendezvous_internal.h"
#include "gradwire/backend/shared/max_ranks.h"
#include "gradwire/backend/shm/shm_backend.h"
#include "gradwire/backend/threads/threads_backend.h"
#include "gradwire/backend/ucx/ucx_backend.h"
#include "gradwire/base/error.h"
#include "gradwire/base/nearest.h"
#include "gradwire/base/strings.h"
#include "gradwire/kernels/dispatch.h"

namespace gradwire {
namespace {

constexpr std::array<BackendEntry, 4> kBuiltin{{
    {"mpi", "ranks that mpirun or srun started, over MPI", &make_mpi_backend, kMaxWorldSize},
    {"shm", "ranks on one host, over shared memory", &make_shm_backend, kMaxRanksOfHost},
    {"threads", "ranks as threads of one process", &make_threads_backend, kMaxRanksOfHost},
    {"ucx", "ranks on any hosts, over UCX: TCP, RoCE, InfiniBand", &make_ucx_backend, kMaxWorldSize},
}};

void require_size(const BackendEntry& entry, int size, std::span<const BackendEntry> table) {
  if (size <= entry.max_ranks) return;
  std::vector<std::string> larger;
  for (const BackendEntry& other : table) {
    if (other.max_ranks >= size) larger.push_back(concat(other.name, " (up to ", other.max_ranks, ")"));
  }
  throw InvalidArgument(concat("make_backend: the backend ", entry.name, " takes at most ", entry.max_ranks,
                               " ranks, and the world size is ", size, "; ",
                               larger.empty() ? "no backend takes so many" : concat("use ", join(larger, " or "))));
}

}  // namespace

std::span<const BackendEntry> builtin_backends() noexcept { return kBuiltin; }

std::unique_ptr<Backend> make_backend(std::string_view name, const BackendOptions& options,
                                      std::span<const BackendEntry> table) {
  if (options.store == nullptr) throw InvalidArgument("make_backend: no store was given");
  if (options.size < 1) throw InvalidArgument(concat("make_backend: the world size is ", options.size));
  if (options.rank < 0 || options.rank >= options.size) {
    throw InvalidArgument(
        concat("make_backend: the rank is ", options.rank, "; it must be from 0 to ", options.size - 1));
  }
  std::vector<std::string> known;
  for (const BackendEntry& entry : table) {
    if (entry.name != name) {
      known.emplace_back(entry.name);
      continue;
    }
    require_size(entry, options.size, table);
    kernels::selected();  // a wrong GRADWIRE_KERNELS is refused here; the kernels themselves cannot throw
    try {
      rendezvous::claim_rank(*options.store, name, options.rank, options.size);
      return entry.make(options);
    } catch (const std::exception& error) {
      rendezvous::announce_failure(*options.store, options.rank, error);
      throw;
    }
  }
  throw InvalidArgument(
      concat("unknown backend '", name, "'", did_you_mean(name, known), "; known are ", join(known, ", ")));
}

}  // namespace gradwire
