// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Which backend "auto" means.
#pragma once

#include <c10/core/Device.h>

#include <optional>
#include <string>

namespace gradwire::internal {

struct BackendChoice {
  // Of the backend. What "nccl" does with tensors on the CPU is a choice of its own, without a device.
  std::string name;
  // For the log: "all ranks are on one host".
  std::string why;
};

// `asked` is a name that backend_names() has. `device`: what the ranks' tensors are on, where they have said.
// `one_host`: all ranks are on one; looked at where `asked` is "auto" and the tensors are on the CPU. Throws
// InvalidArgument where the backend does not serve the device.
BackendChoice choose_backend(const std::string& asked, const std::optional<c10::Device>& device, bool one_host);

}  // namespace gradwire::internal
