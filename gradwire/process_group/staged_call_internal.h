// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Calls with tensors on a device, on engines that move memory of the host.
#pragma once

#include <c10/core/Device.h>

#include <functional>
#include <memory>

#include "gradwire/process_group/device_stager.h"
#include "gradwire/process_group/group_call.h"
#include "gradwire/process_group/staging_memory_internal.h"

namespace gradwire::internal {

// Whether `group` takes tensors on this kind of device through memory of the host.
bool stages(const ProcessGroup& group, c10::DeviceType device);

// Whether staged_call() can serve this kind of device: not the CPU, and torch has its streams.
bool is_stageable(c10::DeviceType device);

// Whether the current stream of `device` is captured into a graph (CUDA graphs): its work is recorded, and does not
// run. False for the CPU, and with a torch that cannot say.
bool is_captured(const c10::Device& device);

// Whether a tensor of the call is on a device.
bool is_on_device(const GroupCall& call);

// Lends the buffers of a group's StagingMemory to a call whose copies run on this stream, or nothing.
using LendStaging = std::function<std::unique_ptr<StagingMemory::Lease>(const c10::Stream& stream)>;

// Makes `call`, some of whose tensors are on a device, with copies on the CPU in their place. `make` makes such a call.
// Staging memory is pinned where the device is CUDA and the machine has pinned memory left. The copies run on the
// current stream, and the host waits for those that it needs. Tensors of all_reduce, broadcast and reduce go in pieces
// of kBufferBytes, so that the copy of one piece overlaps with the communication of another, through the buffers of
// `lend` where there are some. All ranks cut them alike, so all of them pass tensors on devices.
//
// A collective has ended when the function returns: the current stream has the copies into the results in its order.
// The Works of send() and recv() end later; the copies into the results of a recv() are queued on the stream that was
// current at the call. Throws UnsupportedError while the current stream is captured, and what `make` throws.
std::shared_ptr<Work> staged_call(GroupCall& call, const std::function<std::shared_ptr<Work>(GroupCall& call)>& make,
                                  const LendStaging& lend = nullptr);

}  // namespace gradwire::internal
