// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Codecs for values on a device: kernels where the device has them (codec_kernels_internal.h), else ATen's operators,
// which run on every device. The values and their encodings stay on the device.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include "gradwire/compress/codec.h"
#include "gradwire/hooks/device/codec_kernels_internal.h"

namespace gradwire::internal {

// The device's form of a codec. An immutable object; thread-safe. Work is queued on the current stream. encode() of
// `threshold` waits for the number of values that travel, and both calls of `random_k` wait until the places that the
// host has drawn are on the device; all other calls do not wait for the device.
//
// Bits: an encoding has the bytes that the codec itself writes, and decodes to the same bits, except for the payload of
// NaN. Without kernels, the scales of one_bit, which are sums, may differ in the last places: the order of a sum is the
// device's.
class DeviceCodec {
 public:
  virtual ~DeviceCodec() = default;

  // Returns the encoding (uint8, 1-D, contiguous) of `values` (float32, 1-D, contiguous) in memory of their device.
  virtual at::Tensor encode(const at::Tensor& values, const compress::EncodeKey& key) const = 0;

  // Returns the `count` values (float32, 1-D) that `bytes` (uint8, 1-D, contiguous) encode; `count` and `key` are those
  // of encode(). Throws MismatchError when `bytes` cannot have that size. Bytes of another rank may hold anything: they
  // give wrong values then, but no access beyond `bytes` and the result.
  virtual at::Tensor decode(const at::Tensor& bytes, std::int64_t count, const compress::EncodeKey& key) const = 0;

  // sum + decode(bytes, sum.numel(), key), in memory of its own. `sum` is float32, 1-D, and does not change.
  virtual at::Tensor add_decoded(const at::Tensor& sum, const at::Tensor& bytes, const compress::EncodeKey& key) const;
};

// Makes the device's form of `codec`, which must outlive the result. Throws UnsupportedError for a codec that gradwire
// does not have. `find` says which devices have kernels.
std::unique_ptr<DeviceCodec> make_device_codec(const compress::Codec& codec,
                                               FindCodecKernels find = &find_codec_kernels);

}  // namespace gradwire::internal
