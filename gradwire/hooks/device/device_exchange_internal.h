// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The exchanges of compressed values (compress/exchange.h) for values on a device.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "gradwire/compress/compressor.h"
#include "gradwire/hooks/device/device_codec_internal.h"
#include "gradwire/process_group/process_group.h"

namespace gradwire::internal {

// A codec and its form for devices, and the same for the means of an exchange that encodes twice.
struct DeviceCodecs {
  explicit DeviceCodecs(const compress::Codec& codec);
  const compress::Codec& codec;
  std::unique_ptr<DeviceCodec> on_device;
  std::unique_ptr<DeviceCodec> of_means;  // of codec.for_means()
};

// One exchange. Only encodings, and the sizes of encodings where sizes vary, travel; they travel as tensors of the
// values' device.
struct DeviceExchange {
  ProcessGroup& group;
  const DeviceCodecs& codecs;
  compress::EncodeKey key;  // its rank is ignored
  double divisor;
  bool delivers;  // work out what was delivered
};

struct DeviceExchanged {
  at::Tensor mean;       // float32, 1-D; the same bits on all ranks
  at::Tensor delivered;  // of this rank's values; undefined without DeviceExchange::delivers
};

// The exchanges with these names (compress::Exchange::name()), with the steps and the keys of all_gather_exchange.cc
// and all_reduce_exchange.cc. Collective. `values` is float32, 1-D, contiguous, not empty, and does not change. Throws
// what the group and the codec throw.
DeviceExchanged exchange_all_gather(const DeviceExchange& exchange, const at::Tensor& values);
DeviceExchanged exchange_all_reduce(const DeviceExchange& exchange, const at::Tensor& values);

}  // namespace gradwire::internal
