// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/hooks/device/device_compressor_internal.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"

namespace gradwire::internal {
namespace {

auto exchange_named(const std::string& name) {
  if (name == "all_gather") return exchange_all_gather;
  if (name == "all_reduce") return exchange_all_reduce;
  throw UnsupportedError(concat("The exchange '", name,
                                "' has no form for devices, because gradwire does not know the exchange; use one of "
                                "gradwire's exchanges for gradients on a device."));
}

}  // namespace

DeviceCompressor::DeviceCompressor(const compress::Compressor& compressor, DeviceVectors& vectors)
    : compressor_(compressor),
      codecs_(compressor.codec()),
      memory_(make_device_memory(compressor.memory().name(), vectors)),
      exchange_(exchange_named(compressor.exchange().name())) {}

void DeviceCompressor::all_reduce(ProcessGroup& group, std::span<const compress::Segment> segments,
                                  const compress::CompressCall& call, at::Tensor gradient) {
  if (gradient.numel() == 0) return;
  const auto count = static_cast<std::size_t>(gradient.numel());
  const std::size_t each = std::min(compressor_.piece_values(group.size()), count);
  const std::size_t pieces = (count - 1) / each + 1;
  const double divisor = call.divisor == 0 ? group.size() : call.divisor;
  const at::Tensor values = memory_->before(segments, group.size(), gradient);
  std::vector<at::Tensor> means, delivered, finite;
  for (std::size_t piece = 0; piece < pieces; ++piece) {
    const std::size_t begin = piece * each;
    const auto length = static_cast<std::int64_t>(std::min(each, count - begin));
    const compress::EncodeKey key{compressor_.seed(), call.tensor, call.step, 0, static_cast<std::uint32_t>(piece)};
    const DeviceExchanged exchanged = exchange_({group, codecs_, key, divisor, memory_->remembers()},
                                                values.narrow(0, static_cast<std::int64_t>(begin), length));
    means.push_back(exchanged.mean);
    if (!memory_->remembers()) continue;
    delivered.push_back(exchanged.delivered);
    finite.push_back(at::all(at::isfinite(exchanged.mean)).expand({length}));
  }
  const at::Tensor mean = at::cat(means);
  gradient.copy_(memory_->remembers() ? memory_->after(segments, values, at::cat(delivered), mean, at::cat(finite))
                                      : mean);
}

}  // namespace gradwire::internal
