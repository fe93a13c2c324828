// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/process_group/choose_backend_internal.h"

#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"

namespace gradwire::internal {

BackendChoice choose_backend(const std::string& asked, const std::optional<c10::Device>& device, bool one_host) {
  const bool on_cuda = device && device->is_cuda();
  if (device && !on_cuda && !device->is_cpu()) {
    throw InvalidArgument(concat("make_process_group: device_id is ", *device,
                                 "; backends serve tensors on the CPU and on CUDA devices"));
  }
  if (asked != "auto") {
    if (on_cuda == (asked == "nccl") || !device) return {asked, "it was asked for"};
    throw InvalidArgument(concat("make_process_group: the backend '", asked, "' does not serve tensors on ", *device,
                                 on_cuda ? "; ask for 'nccl' or 'auto'" : "; ask for 'auto'"));
  }
  if (on_cuda) return {"nccl", concat("the tensors are on ", *device)};
  if (one_host) return {"shm", "all ranks are on one host"};
  return {"hybrid", "the ranks are on several hosts"};
}

}  // namespace gradwire::internal
