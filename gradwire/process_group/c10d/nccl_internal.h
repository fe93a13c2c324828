// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// libtorch's own NCCL.
#pragma once

#include <c10/core/Device.h>

#include <memory>
#include <optional>

#include "gradwire/process_group/c10d/from_c10d.h"

namespace gradwire::internal {

// Whether this was built with the headers of CUDA and NCCL, for a libtorch that has both.
bool nccl_is_built() noexcept;

// Makes libtorch's ProcessGroupNCCL for `device`, connected when it returns. No thread of it ends the process when a
// call fails or misses its deadline, as libtorch's own default is; TORCH_NCCL_ASYNC_ERROR_HANDLING in the environment
// says otherwise. It ends well when it goes, unless it was aborted: calls under way are finished first. Throws
// UnsupportedError in a build without NCCL.
c10::intrusive_ptr<c10d::Backend> make_nccl(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                            Milliseconds timeout, c10::Device device);

// The CUDA device of this rank: `asked`; else number `local_rank` (LOCAL_RANK, the rank among those of its host), or
// `rank` modulo the number of devices where nothing says that. Throws InvalidArgument for a device that is none of
// CUDA's or not there, ResourceError where the machine has none (`devices` is 0).
c10::Device choose_cuda_device(const std::optional<c10::Device>& asked, const std::optional<long>& local_rank, int rank,
                               int devices);

// A group whose CUDA tensors go through NCCL on the device that choose_cuda_device() says, and its CPU tensors through
// `cpu`, which becomes part of it. Collective in `store`. Throws UnsupportedError in a build without NCCL, else as
// choose_cuda_device() and NCCL do.
std::shared_ptr<ProcessGroup> make_nccl_group(std::shared_ptr<ProcessGroup> cpu, std::shared_ptr<Store> store,
                                              const std::optional<c10::Device>& device);

// Throws the UnsupportedError of a build without NCCL, if this is one.
void require_nccl();

}  // namespace gradwire::internal
