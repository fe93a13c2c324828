// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Backends in libraries of their own, which lie beside libgradwire_core.so and are loaded when somebody asks for the
// backend: programs start on machines without the library that the backend needs (docs/decisions/0007).
#pragma once

#include <memory>
#include <string_view>

#include "gradwire/backend/registry.h"

namespace gradwire::plugin {

// What a library gives, under the symbol that its Description names, with C linkage.
struct Entry {
  const char* version;  // of gradwire: the libraries must come from one build
  std::unique_ptr<Backend> (*make)(const BackendOptions& options);
};

// One backend that has a library of its own. Constants, so that the texts live as long as the process.
struct Description {
  std::string_view backend;   // its name in the registry
  const char* file;           // "libgradwire_mpi.so.0"
  const char* symbol;         // of the Entry
  std::string_view engine;    // what the library uses: "MPI"
  std::string_view to_build;  // the packages of a machine that builds it
  std::string_view to_run;    // the packages of a machine that runs it
};

// Returns whether the library's file is there: whether this gradwire was built with it.
bool is_built(const Description& description) noexcept;

// Loads the library unless it is loaded; it is never closed. Throws UnsupportedError when there is no such library
// here, when it cannot be loaded, or when it is of another version. Thread-safe.
const Entry& load(const Description& description);

}  // namespace gradwire::plugin
