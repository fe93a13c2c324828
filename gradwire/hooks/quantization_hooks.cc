// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// A rank sends one packet: the scales of all rows (float32 each), the zero points of all rows (one byte each), the
// codes.
#include "gradwire/hooks/quantization_hooks.h"

#include <ATen/Functions.h>
#include <ATen/core/jit_type.h>

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "gradwire/hooks/default_hooks.h"
#include "gradwire/hooks/device/affine_internal.h"
#include "gradwire/hooks/support_internal.h"
#include "gradwire/kernels/affine.h"

namespace gradwire {
namespace {

// The layout of a packet for `count` elements in rows of `row` elements.
struct PacketLayout {
  std::size_t count;
  std::size_t row;

  std::size_t rows() const { return (count + row - 1) / row; }
  std::size_t zero_points() const { return rows() * sizeof(float); }
  std::size_t codes() const { return zero_points() + rows(); }
  std::size_t size() const { return codes() + count; }
  std::size_t length(std::size_t at) const { return std::min(row, count - at * row); }
};

void encode(const PacketLayout& layout, const float* values, std::uint8_t* packet) {
  for (std::size_t row = 0; row < layout.rows(); ++row) {
    const std::size_t begin = row * layout.row;
    const kernels::AffineScale affine = kernels::affine_scale(values + begin, layout.length(row));
    std::memcpy(packet + row * sizeof(float), &affine.scale, sizeof(float));
    packet[layout.zero_points() + row] = static_cast<std::uint8_t>(affine.zero_point);
    kernels::quantize_affine(values + begin, layout.length(row), affine, packet + layout.codes() + begin);
  }
}

kernels::AffineCodes row_of(const PacketLayout& layout, const std::uint8_t* packet, std::size_t row) {
  kernels::AffineCodes codes{.codes = packet + layout.codes() + row * layout.row, .affine = {}};
  std::memcpy(&codes.affine.scale, packet + row * sizeof(float), sizeof(float));
  codes.affine.zero_point = static_cast<float>(packet[layout.zero_points() + row]);
  return codes;
}

// `packets` holds one packet for each rank, in rank order.
void decode(const PacketLayout& layout, const std::uint8_t* packets, int ranks, int divisor, float* average) {
  std::vector<kernels::AffineCodes> parts(static_cast<std::size_t>(ranks));
  for (std::size_t row = 0; row < layout.rows(); ++row) {
    for (std::size_t rank = 0; rank < parts.size(); ++rank)
      parts[rank] = row_of(layout, packets + rank * layout.size(), row);
    kernels::average_affine(parts, layout.length(row), static_cast<float>(divisor), average + row * layout.row);
  }
}

Future quantize_on_device(ProcessGroup& group, GradBucket& bucket, std::int64_t row) {
  const at::Tensor buffer = bucket.buffer();
  const at::Tensor packet = internal::encode_affine(buffer.to(at::kFloat), row);
  const at::Tensor packets = at::empty({packet.numel() * group.size()}, packet.options());
  group.all_gather_into_tensor(packets, packet)->wait();
  buffer.copy_(internal::average_affine(packets, buffer.numel(), row, group.size(), bucket.divisor(group)));
  return completed_future(buffer);
}

Future quantize(const std::shared_ptr<ProcessGroup>& group, GradBucket& bucket, std::int64_t row) {
  const at::Tensor buffer = bucket.buffer();
  if (!buffer.is_floating_point()) return allreduce_hook(group, bucket);
  if (buffer.numel() == 0) return completed_future(buffer);
  ProcessGroup& over = group != nullptr ? *group : bucket.group();
  if (!buffer.is_cpu()) return quantize_on_device(over, bucket, row);
  const PacketLayout layout{static_cast<std::size_t>(buffer.numel()), static_cast<std::size_t>(row)};
  const auto size = static_cast<std::int64_t>(layout.size());
  const at::Tensor values = internal::cast_to(buffer, at::kFloat);
  const at::Tensor packet = at::empty({size}, at::kByte);
  const at::Tensor packets = at::empty({size * over.size()}, at::kByte);
  encode(layout, values.const_data_ptr<float>(), packet.mutable_data_ptr<std::uint8_t>());
  const std::shared_ptr<Work> gathered = over.all_gather_into_tensor(packets, packet);
  return gathered->future()->then(
      [=, gathered = gathered, ranks = over.size(), divisor = bucket.divisor(over)](c10::ivalue::Future& done) {
        internal::rethrow_error(done);
        // The buffer of a float32 bucket is `values` itself.
        decode(layout, packets.const_data_ptr<std::uint8_t>(), ranks, divisor, values.mutable_data_ptr<float>());
        if (!values.is_same(buffer)) internal::cast_into(values, buffer);
        return c10::IValue(buffer);
      },
      c10::TensorType::get());
}

}  // namespace

Future quantization_pertensor_hook(const std::shared_ptr<ProcessGroup>& group, GradBucket& bucket) {
  return quantize(group, bucket, std::max<std::int64_t>(bucket.buffer().numel(), 1));
}

Future quantization_perchannel_hook(const std::shared_ptr<ProcessGroup>& group, GradBucket& bucket) {
  return quantize(group, bucket, kQuantizationRow);
}

std::shared_ptr<CommHook> make_quantization_pertensor_hook(std::shared_ptr<ProcessGroup> group) {
  return internal::make_group_hook("quantize_per_tensor", std::move(group), quantization_pertensor_hook);
}

std::shared_ptr<CommHook> make_quantization_perchannel_hook(std::shared_ptr<ProcessGroup> group) {
  return internal::make_group_hook("quantize_per_channel", std::move(group), quantization_perchannel_hook);
}

}  // namespace gradwire
