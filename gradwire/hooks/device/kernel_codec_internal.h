// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Codecs whose work is done by kernels on the devices that have them.
#pragma once

#include <memory>

#include "gradwire/hooks/device/codec_kernels_internal.h"
#include "gradwire/hooks/device/device_codec_internal.h"

namespace gradwire::internal {

// Returns a codec that uses the kernels which `find` names for the device of its tensors, and `operators` where there
// are none. `operators` is the form of `codec` in ATen's operators, and is returned itself for a codec without kernels
// (threshold, random_k). `codec` must outlive the result.
std::unique_ptr<DeviceCodec> with_kernels(const compress::Codec& codec, std::unique_ptr<DeviceCodec> operators,
                                          FindCodecKernels find);

}  // namespace gradwire::internal
