// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The only file of this folder that is part of libgradwire_core.so.
#include "gradwire/backend/mpi/mpi_backend.h"

#include "gradwire/backend/plugin_internal.h"
#include "gradwire/base/error.h"

namespace gradwire {
namespace {

constexpr plugin::Description kMpiPlugin{.backend = "mpi",
                                         .file = GRADWIRE_MPI_PLUGIN,
                                         .symbol = "gradwire_mpi_plugin",
                                         .engine = "MPI",
                                         .to_build = "openmpi-bin, libopenmpi-dev",
                                         .to_run = "openmpi-bin"};

}  // namespace

std::unique_ptr<Backend> make_mpi_backend(const BackendOptions& options) {
  return plugin::load(kMpiPlugin).make(options);
}

bool mpi_is_built() noexcept { return plugin::is_built(kMpiPlugin); }

std::optional<std::string> why_no_mpi() {
  try {
    plugin::load(kMpiPlugin);
    return std::nullopt;
  } catch (const UnsupportedError& error) {
    return error.what();
  }
}

}  // namespace gradwire
