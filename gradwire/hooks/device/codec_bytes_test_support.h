// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// What a codec writes on the CPU, as a tensor: what codecs on devices are compared with.
#pragma once

#include <ATen/Functions.h>

#include <cstddef>
#include <cstdint>

#include "gradwire/compress/codec.h"

namespace gradwire::testing {

// `values`: f32 on the CPU, contiguous. Returns the bytes of the encoding and no more.
inline at::Tensor bytes_of(const compress::Codec& codec, const at::Tensor& values, const compress::EncodeKey& key) {
  const auto count = static_cast<std::size_t>(values.numel());
  const at::Tensor bytes = at::zeros({static_cast<std::int64_t>(codec.encoded_size(count, key.step))}, at::kByte);
  const std::size_t size =
      codec.encode({values.const_data_ptr<float>(), count}, key,
                   {static_cast<std::byte*>(bytes.mutable_data_ptr()), static_cast<std::size_t>(bytes.numel())});
  return bytes.narrow(0, 0, static_cast<std::int64_t>(size)).clone();
}

}  // namespace gradwire::testing
