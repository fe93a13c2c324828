// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Ranks that share a device.
#pragma once

#include <c10/core/Device.h>

#include <vector>

#include "gradwire/process_group/process_group.h"

namespace gradwire::internal {

// Throws an UnsupportedError on all ranks where two ranks of `control` are threads of one process and have a device in
// common: autograd has one thread for each device of a process, so the backward pass of one rank would wait for that of
// the other, which could not begin. Ranks in processes of their own may share a device. Collective; `devices` are those
// of this rank, of one kind. Devices beyond the 63rd are not compared.
void require_no_shared_device(ProcessGroup& control, const std::vector<c10::Device>& devices);

}  // namespace gradwire::internal
