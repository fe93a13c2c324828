// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// A CUDA stream that waits for something on the CPU. Through libtorch's registry, so that nothing here needs CUDA.
#pragma once

#include <functional>
#include <memory>
#include <torch/csrc/distributed/c10d/cuda/StreamBlock.hpp>

#include "gradwire/process_group/work.h"

namespace gradwire::internal {

// Whether libtorch has CUDA and this machine a device for it.
bool current_stream_can_wait() noexcept;

// Makes the current CUDA stream wait until `future` has ended, well or not. What holds it up lives until then, whatever
// becomes of a Work. False, and nothing done, where the future has ended already: who waits for that gets its stream in
// order without being held up.
bool hold_current_stream(const Future& future);

// The same with another way to hold up a stream, which ends with abort().
bool hold_current_stream(const Future& future,
                         const std::function<std::shared_ptr<c10d::cuda::StreamBlock>()>& hold_up);

}  // namespace gradwire::internal
