// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// What libgradwire_mpi.so gives to libgradwire_core.so.
#pragma once

#include <memory>

#include "gradwire/backend/registry.h"

namespace gradwire::mpi {

struct Plugin {
  const char* version;  // of gradwire: the two libraries must come from one build
  std::unique_ptr<Backend> (*make)(const BackendOptions& options);
};

inline constexpr const char* kPluginSymbol = "gradwire_mpi_plugin";

}  // namespace gradwire::mpi
