// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// One byte an element: affine quantization, all-gather, and the average of what all ranks sent.
//
// A row of values x_i of one rank, with low = min(x, 0) and high = max(x, 0), becomes
//   scale = (high - low) / 255       zero_point = -round(low / scale)       code_i = round(x_i / scale) + zero_point
// in float32, rounded half to even, codes within 0 and 255. Every rank gathers all codes and computes, in rank order,
//   average_i = (sum over ranks of scale * (code_i - zero_point)) / bucket.divisor()
// so all ranks hold the same bits. The error of an element is half a scale at most: 0.2% of its row's range.
//
// Per tensor, the bucket is one row; per channel, it is cut into rows of 512 elements, the last of which may be
// shorter.
//
// Bytes a rank sends for a bucket of n elements in r rows (r = 1, or ceil(n / 512)), over N ranks: (N - 1) * (n + 5 r),
// the 5 being a float32 and a byte. It grows with N: an all-reduce in float32 sends 8 n (N - 1) / N, less from N = 8
// on.
//
// The arithmetic is PyTorch's, whose two hooks these are, but for this:
// - PyTorch makes no scale smaller than 1.19e-7, so a row whose range is below 3e-5 loses bits, and one below 6e-8 all
//   of them. Here the smallest scale is 1.18e-38, and the relative error does not depend on the range. A row whose
//   range is below 3e-36 loses bits, denormal numbers (below 1.18e-38) may become 0.
// - A row with an infinity or a NaN on any rank comes out as NaN in every element, on all ranks; in PyTorch it is an
//   assertion that fails on that rank alone, or finite numbers.
// - A range that does not fit into float32 is right here (PyTorch: NaN); a value within one scale of the largest
//   float32 may come out infinite, as may sums beyond it.
// - One collective instead of two. An exact multiple of 512 elements has no empty row at its end.
//
// Buckets of float64, half and bfloat16 are quantized from their values in float32 (larger ones are infinite there),
// and the average is cast back. Buckets that are not of a floating type go through allreduce_hook(). On the CPU only.
#pragma once

#include <cstdint>
#include <memory>

#include "gradwire/ddp/comm_hook.h"
#include "gradwire/process_group/process_group.h"

namespace gradwire {

// The hooks' bodies, over `group` (null: bucket.group()), which needs all_gather alone. The future holds
// bucket.buffer(). Errors of the collective come out of the future; throws UnsupportedError for a bucket on another
// device than the CPU.
Future quantization_pertensor_hook(const std::shared_ptr<ProcessGroup>& group, GradBucket& bucket);
Future quantization_perchannel_hook(const std::shared_ptr<ProcessGroup>& group, GradBucket& bucket);

// Elements of a row of the hook per channel.
inline constexpr std::int64_t kQuantizationRow = 512;

// The same as hooks to register.
std::shared_ptr<CommHook> make_quantization_pertensor_hook(std::shared_ptr<ProcessGroup> group = nullptr);
std::shared_ptr<CommHook> make_quantization_perchannel_hook(std::shared_ptr<ProcessGroup> group = nullptr);

}  // namespace gradwire
