// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Loads libgradwire_mpi.so. The only file of this folder that is part of libgradwire_core.so.
#include "gradwire/backend/mpi/mpi_backend.h"

#include <dlfcn.h>

#include <filesystem>
#include <string>
#include <string_view>

#include "gradwire/backend/mpi/plugin_internal.h"
#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"

namespace gradwire {
namespace {

constexpr std::string_view kVersion = GRADWIRE_VERSION;

// Beside this library, and nowhere else: another gradwire's would not fit.
std::filesystem::path plugin_path() {
  Dl_info self{};
  if (::dladdr(reinterpret_cast<const void*>(&make_mpi_backend), &self) == 0 || self.dli_fname == nullptr) {
    throw InternalError("backend mpi: the folder of libgradwire_core.so is unknown");
  }
  return std::filesystem::path(self.dli_fname).parent_path() / GRADWIRE_MPI_PLUGIN;
}

const mpi::Plugin& load_plugin() {
  const std::filesystem::path path = plugin_path();
  std::error_code unknown;
  if (!std::filesystem::exists(path, unknown)) {
    throw UnsupportedError(concat("backend mpi: this gradwire was built without MPI: there is no ", path.string(),
                                  "; install MPI (Debian: openmpi-bin, libopenmpi-dev) and build again"));
  }
  // Never closed: MPI lives as long as its process.
  void* const library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* const why = ::dlerror();
    throw UnsupportedError(concat("backend mpi: cannot load ", path.string(), ": ", why != nullptr ? why : "unknown",
                                  "; is MPI installed on this machine (Debian: openmpi-bin)?"));
  }
  const auto* const plugin = static_cast<const mpi::Plugin*>(::dlsym(library, mpi::kPluginSymbol));
  if (plugin == nullptr || plugin->version != kVersion) {
    throw UnsupportedError(concat("backend mpi: ", path.string(), " is of another version of gradwire than ", kVersion,
                                  "; install both libraries from one build"));
  }
  return *plugin;
}

}  // namespace

std::unique_ptr<Backend> make_mpi_backend(const BackendOptions& options) { return load_plugin().make(options); }

}  // namespace gradwire
