// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/process_group/pinned_range_internal.h"

#include <dlfcn.h>

namespace gradwire::internal {
namespace {

// Of CUDA's driver API (cuda.h), whose binary interface is stable.
using Register = int (*)(void* data, std::size_t bytes, unsigned flags);
using Unregister = int (*)(void* data);
constexpr unsigned kForAllContexts = 1;  // CU_MEMHOSTREGISTER_PORTABLE

template <class Function>
Function find(const std::shared_ptr<void>& driver, const char* name) {
  return driver == nullptr ? nullptr : reinterpret_cast<Function>(::dlsym(driver.get(), name));
}

}  // namespace

PinnedRange::PinnedRange(void* data, std::size_t bytes) {
  if (void* const loaded = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD)) {
    driver_ = std::shared_ptr<void>(loaded, [](void* driver) { ::dlclose(driver); });
  }
  const auto pin = find<Register>(driver_, "cuMemHostRegister_v2");
  if (pin != nullptr && pin(data, bytes, kForAllContexts) == 0) data_ = data;
}

PinnedRange::~PinnedRange() {
  if (!is_pinned()) return;
  if (const auto unpin = find<Unregister>(driver_, "cuMemHostUnregister")) static_cast<void>(unpin(data_));
}

}  // namespace gradwire::internal
