// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Chooses the backend that "auto" means.
#pragma once

#include <c10/core/Device.h>

#include <optional>
#include <string>

namespace gradwire::internal {

struct BackendChoice {
  // The backend's name. The backend that "nccl" uses for tensors on the CPU is chosen by another call, without a
  // device.
  std::string name;
  // For the log: "all ranks are on one host".
  std::string why;
};

// `asked` is a name that backend_names() has. `device` holds the ranks' tensors, where the ranks have named one.
// `one_host`: all ranks are on one host; used only where `asked` is "auto" and the tensors are on the CPU. Throws
// InvalidArgument where the backend does not serve the device.
BackendChoice choose_backend(const std::string& asked, const std::optional<c10::Device>& device, bool one_host);

}  // namespace gradwire::internal
