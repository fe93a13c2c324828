// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include <dlfcn.h>

#include <filesystem>
#include <string>

#include "gradwire/backend/plugin_internal.h"
#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"

namespace gradwire::plugin {
namespace {

constexpr std::string_view kVersion = GRADWIRE_VERSION;

// Beside this library, and nowhere else: another gradwire's would not fit.
std::filesystem::path path_of(const Description& description) {
  Dl_info self{};
  if (::dladdr(reinterpret_cast<const void*>(&load), &self) == 0 || self.dli_fname == nullptr) {
    throw InternalError(concat("backend ", description.backend, ": the folder of libgradwire_core.so is unknown"));
  }
  return std::filesystem::path(self.dli_fname).parent_path() / description.file;
}

}  // namespace

bool is_built(const Description& description) noexcept {
  try {
    return std::filesystem::exists(path_of(description));
  } catch (const std::exception&) {
    return false;
  }
}

const Entry& load(const Description& description) {
  const std::filesystem::path path = path_of(description);
  const std::string who = concat("backend ", description.backend, ": ");
  std::error_code unknown;
  if (!std::filesystem::exists(path, unknown)) {
    throw UnsupportedError(concat(who, "this gradwire was built without ", description.engine, ": there is no ",
                                  path.string(), "; install ", description.engine, " (Debian: ", description.to_build,
                                  ") and build again"));
  }
  // Never closed: what the library uses lives as long as its process.
  void* const library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* const why = ::dlerror();
    throw UnsupportedError(concat(who, "cannot load ", path.string(), ": ", why != nullptr ? why : "unknown", "; is ",
                                  description.engine, " installed on this machine (Debian: ", description.to_run,
                                  ")?"));
  }
  const auto* const entry = static_cast<const Entry*>(::dlsym(library, description.symbol));
  if (entry == nullptr || entry->version != kVersion) {
    throw UnsupportedError(concat(who, path.string(), " is of another version of gradwire than ", kVersion,
                                  "; install both libraries from one build"));
  }
  return *entry;
}

}  // namespace gradwire::plugin
