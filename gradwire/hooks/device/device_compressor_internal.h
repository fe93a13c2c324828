// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Compressors for gradients on a device.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <span>

#include "gradwire/compress/compressor.h"
#include "gradwire/hooks/device/device_exchange_internal.h"
#include "gradwire/hooks/device/device_memory_internal.h"
#include "gradwire/process_group/process_group.h"

namespace gradwire::internal {

// The device's form of a compressor, with the codec, memory, exchange, seed and pieces of `compressor`, which must
// outlive it. The gradient and the state stay on the device; encodings travel. The numbers are those of the compressor
// itself, as DeviceCodec says. Calls for different parameters may run at the same time; the state may be asked from
// other threads.
class DeviceCompressor {
 public:
  // Throws UnsupportedError for a codec, a memory or an exchange that gradwire does not have.
  explicit DeviceCompressor(const compress::Compressor& compressor, DeviceVectors& vectors);

  // As compress::Compressor::all_reduce(), for `gradient`: float32, 1-D, contiguous, on a device. `segments` cover
  // `gradient`, one after another.
  void all_reduce(ProcessGroup& group, std::span<const compress::Segment> segments, const compress::CompressCall& call,
                  at::Tensor gradient);

 private:
  const compress::Compressor& compressor_;
  const DeviceCodecs codecs_;
  const std::unique_ptr<DeviceMemory> memory_;
  DeviceExchanged (*exchange_)(const DeviceExchange& exchange, const at::Tensor& values);
};

}  // namespace gradwire::internal
