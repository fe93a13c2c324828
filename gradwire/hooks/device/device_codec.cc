// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/hooks/device/device_codec_internal.h"

#include <ATen/TensorOperators.h>

#include <string_view>
#include <utility>

#include "gradwire/base/error.h"
#include "gradwire/base/options.h"
#include "gradwire/base/strings.h"
#include "gradwire/hooks/device/dense_codecs_internal.h"
#include "gradwire/hooks/device/kernel_codec_internal.h"
#include "gradwire/hooks/device/sparse_codecs_internal.h"

namespace gradwire::internal {
namespace {

struct Row {
  std::string_view name;
  std::unique_ptr<DeviceCodec> (*make)(const compress::Codec& codec, Options& options);
};

constexpr Row kRows[] = {
    {"fp16", make_device_cast},        {"bf16", make_device_cast},       {"fp8_e4m3", make_device_fp8},
    {"fp8_e5m2", make_device_fp8},     {"int8", make_device_integer},    {"int4", make_device_integer},
    {"int2", make_device_integer},     {"one_bit", make_device_one_bit}, {"sign", make_device_sign},
    {"top_k", make_device_top_k},      {"dgc", make_device_top_k},       {"threshold", make_device_threshold},
    {"random_k", make_device_random_k}};

}  // namespace

at::Tensor DeviceCodec::add_decoded(const at::Tensor& sum, const at::Tensor& bytes,
                                    const compress::EncodeKey& key) const {
  return sum + decode(bytes, sum.numel(), key);
}

std::unique_ptr<DeviceCodec> make_device_codec(const compress::Codec& codec, FindCodecKernels find) {
  const std::string description = codec.name();
  const NamedOptions parts = split_name(description);
  for (const Row& row : kRows) {
    if (row.name != parts.name) continue;
    Options options(concat("codec ", parts.name), parts.options);
    auto made = row.make(codec, options);
    options.require_all_taken("those of the codec's name");
    return with_kernels(codec, std::move(made), find);
  }
  throw UnsupportedError(concat("The codec '", description,
                                "' has no form for devices, because gradwire does not know the codec; use one of "
                                "gradwire's codecs for gradients on a device."));
}

}  // namespace gradwire::internal
