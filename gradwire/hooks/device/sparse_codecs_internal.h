// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The device's forms of the codecs that send some of the values.
#pragma once

#include <memory>

#include "gradwire/base/options.h"
#include "gradwire/hooks/device/device_codec_internal.h"

namespace gradwire::internal {

// Each takes the codec, and the options in the codec's name.
std::unique_ptr<DeviceCodec> make_device_top_k(const compress::Codec& codec, Options& options);
std::unique_ptr<DeviceCodec> make_device_threshold(const compress::Codec& codec, Options& options);
std::unique_ptr<DeviceCodec> make_device_random_k(const compress::Codec& codec, Options& options);

}  // namespace gradwire::internal
