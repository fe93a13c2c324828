// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The device's forms of the codecs that send every value.
#pragma once

#include <memory>

#include "gradwire/base/options.h"
#include "gradwire/hooks/device/device_codec_internal.h"

namespace gradwire::internal {

// Each takes the codec, and the options in the codec's name.
std::unique_ptr<DeviceCodec> make_device_cast(const compress::Codec& codec, Options& options);
std::unique_ptr<DeviceCodec> make_device_fp8(const compress::Codec& codec, Options& options);
std::unique_ptr<DeviceCodec> make_device_integer(const compress::Codec& codec, Options& options);
std::unique_ptr<DeviceCodec> make_device_one_bit(const compress::Codec& codec, Options& options);
std::unique_ptr<DeviceCodec> make_device_sign(const compress::Codec& codec, Options& options);

// Throws MismatchError unless `bytes` may be an encoding of `count` values at the key's step.
void require_encoding(const compress::Codec& codec, const at::Tensor& bytes, std::int64_t count,
                      const compress::EncodeKey& key);

}  // namespace gradwire::internal
