// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// A CUDA stream that waits for something on the CPU. Through libtorch's registry, so that nothing here needs CUDA.
#pragma once

#include <functional>
#include <memory>
#include <torch/csrc/distributed/c10d/cuda/StreamBlock.hpp>

#include "gradwire/process_group/work.h"

namespace gradwire::internal {

// Whether libtorch has CUDA and this machine has a CUDA device.
bool current_stream_can_wait() noexcept;

// Makes the current CUDA stream wait until `future` has ended, also with an error. The object that blocks the stream
// lives until then, even if the Work is destroyed earlier. Returns false, and does nothing, where the future has ended
// already: a wait() for the future orders the stream then.
bool hold_current_stream(const Future& future);

// The same with another way to block a stream; abort() of its result releases the stream.
bool hold_current_stream(const Future& future,
                         const std::function<std::shared_ptr<c10d::cuda::StreamBlock>()>& hold_up);

}  // namespace gradwire::internal
