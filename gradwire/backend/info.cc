// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/backend/info.h"

#include <algorithm>
#include <array>
#include <memory>
#include <optional>

#include "gradwire/backend/mpi/mpi_backend.h"
#include "gradwire/backend/registry.h"
#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "gradwire/kernels/dispatch.h"
#include "gradwire/store/hash_store.h"

// gradwire/process_group/CMakeLists.txt says what of these the part above the line has.
#ifndef GRADWIRE_TORCH_VERSION
#define GRADWIRE_TORCH_VERSION ""
#endif
#ifndef GRADWIRE_HAS_GLOO
#define GRADWIRE_HAS_GLOO 0
#endif
#ifndef GRADWIRE_HAS_NCCL
#define GRADWIRE_HAS_NCCL 0
#endif

namespace gradwire {
namespace {

constexpr bool kHasTorch = sizeof(GRADWIRE_TORCH_VERSION) > 1;
constexpr Milliseconds kPatience{10000};

// Why a rank of `backend` cannot be made here; nothing where it can.
std::optional<std::string> why_not(std::string_view backend) {
  if (backend == "mpi") return why_no_mpi();
  try {
    BackendOptions options;
    options.store = std::make_shared<HashStore>();
    options.timeout = kPatience;
    make_backend(backend, options)->channel().barrier({});
    return std::nullopt;
  } catch (const std::exception& error) {
    return error.what();
  }
}

BackendInfo probe(std::string_view backend) {
  const auto problem = why_not(backend);
  const char* tried = backend == "mpi" ? "its library can be loaded; ranks need mpirun or srun" : "";
  return {std::string(backend), !problem, problem.value_or(tried)};
}

BackendInfo of_torch(const char* name, bool is_built, const char* to_build) {
  if (!kHasTorch) return {name, false, "this gradwire was built without torch (GRADWIRE_TORCH=OFF)"};
  if (!is_built) return {name, false, concat("this gradwire was built without it; the build needs ", to_build)};
  return {name, true, concat("libtorch's own, and built in; not tried here")};
}

// What `auto` means, and groups of groups: docs/backends.md.
BackendInfo of_auto() {
  return {"auto", true,
          kHasTorch ? "shm where all ranks are on one host, else hybrid; nccl for CUDA devices"
                    : "shm where all ranks are on one host, else ucx"};
}

BackendInfo of_hybrid(const std::vector<BackendInfo>& others) {
  if (!kHasTorch) return {"hybrid", false, "this gradwire was built without torch (GRADWIRE_TORCH=OFF)"};
  const auto is_usable = [&](std::string_view name) {
    return std::any_of(others.begin(), others.end(),
                       [&](const BackendInfo& other) { return other.name == name && other.is_usable; });
  };
  const bool has_ucx = is_usable("ucx");
  if (!is_usable("shm") || (!has_ucx && !is_usable("gloo")))
    return {"hybrid", false, "it needs shm, and ucx or gloo between hosts"};
  return {"hybrid", true, concat("shm within each host, ", has_ucx ? "ucx" : "gloo", " between hosts; not tried here")};
}

std::string compiler() {
#if defined(__clang__)
  return concat("Clang ", __clang_version__);
#elif defined(__GNUC__)
  return concat("GCC ", __VERSION__);
#else
  return "an unknown compiler";
#endif
}

}  // namespace

const char* version() noexcept { return GRADWIRE_VERSION; }

std::vector<BackendInfo> backend_info() {
  std::vector<BackendInfo> backends{of_torch("gloo", GRADWIRE_HAS_GLOO != 0, "Gloo's headers (Debian: libgloo-dev)"),
                                    of_torch("nccl", GRADWIRE_HAS_NCCL != 0, "a libtorch with CUDA")};
  for (const BackendEntry& entry : builtin_backends()) backends.push_back(probe(entry.name));
  backends.push_back(of_hybrid(backends));
  backends.push_back(of_auto());
  std::sort(backends.begin(), backends.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  return backends;
}

std::string installation_info() {
  std::vector<std::string> lines{concat("gradwire ", version()),
                                 concat("build: ", GRADWIRE_BUILD_TYPE, ", ", compiler(), ", ",
                                        kHasTorch ? "libtorch " GRADWIRE_TORCH_VERSION : "without torch")};
  for (const BackendInfo& backend : backend_info()) {
    const std::string remark = backend.remark.empty() ? "" : concat(": ", backend.remark);
    lines.push_back(concat("backend ", backend.name, ": ", backend.is_usable ? "usable" : "not usable", remark));
  }
  std::string selected;
  try {
    selected = kernels::selected();
  } catch (const InvalidArgument& error) {
    selected = concat("none: ", error.what());
  }
  lines.push_back(concat("kernels: ", selected, " (this processor can run ", join(kernels::available(), ", "), ")"));
  return join(lines, "\n") + "\n";
}

}  // namespace gradwire
