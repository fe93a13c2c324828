// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// libtorch's own NCCL.
#pragma once

#include <c10/core/Device.h>

#include <memory>
#include <optional>

#include "gradwire/process_group/c10d/from_c10d.h"

namespace gradwire::internal {

// Whether this build has the backend "nccl", which needs the headers of CUDA and NCCL, and a libtorch that has both.
bool nccl_is_built() noexcept;

// Makes libtorch's ProcessGroupNCCL for `device`; it is connected when the function returns. Its threads do not end the
// process when a call fails or misses its deadline (libtorch's own default is that they do), unless
// TORCH_NCCL_ASYNC_ERROR_HANDLING in the environment says otherwise. Its destructor finishes the calls under way,
// unless it was aborted. Throws UnsupportedError in a build without NCCL.
c10::intrusive_ptr<c10d::Backend> make_nccl(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                            Milliseconds timeout, c10::Device device);

// Returns the CUDA device of this rank: `asked`; else the device with the number `local_rank` (LOCAL_RANK, the rank
// among the ranks of its host); else the device whose number is `rank` modulo the number of devices. Throws
// InvalidArgument for a device that is no CUDA device or is not there, ResourceError where the machine has none
// (`devices` is 0).
c10::Device choose_cuda_device(const std::optional<c10::Device>& asked, const std::optional<long>& local_rank, int rank,
                               int devices);

// Makes a group that uses NCCL for CUDA tensors, on the device that choose_cuda_device() returns, and `cpu` for tensors
// on the CPU. The group owns `cpu`, and has its timeout; NCCL connects by `deadline`. Collective in `store`. Throws
// UnsupportedError in a build without NCCL, else as choose_cuda_device() and NCCL do.
std::shared_ptr<ProcessGroup> make_nccl_group(Deadline deadline, const std::shared_ptr<ProcessGroup>& cpu,
                                              std::shared_ptr<Store> store, const std::optional<c10::Device>& device);

// Throws UnsupportedError in a build without NCCL; does nothing otherwise.
void require_nccl();

}  // namespace gradwire::internal
