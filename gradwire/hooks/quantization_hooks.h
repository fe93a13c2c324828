// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Affine quantization to one byte for each element, an all-gather, and the average over the ranks.
//
// A row of one rank's values x_i, with low = min(x, 0) and high = max(x, 0), becomes
//   scale = (high - low) / 255       zero_point = -round(low / scale)       code_i = round(x_i / scale) + zero_point
// in float32, rounded half to even; codes are from 0 to 255. Every rank gathers all codes and computes, in rank order,
//   average_i = (sum over ranks of scale * (code_i - zero_point)) / bucket.divisor()
// so all ranks hold the same bits. The error of an element is at most half a scale: 0.2 % of the range of its row.
//
// Per tensor, the bucket is one row. Per channel, the bucket is cut into rows of 512 elements; the last row may be
// shorter.
//
// For a bucket of n elements in r rows (r = 1, or ceil(n / 512)) and N ranks, a rank sends (N - 1) * (n + 5 r) bytes;
// the 5 bytes are a float32 scale and a zero point. The bytes grow with N: from N = 8 on, an all-reduce in float32
// sends less, 8 n (N - 1) / N bytes.
//
// The arithmetic is that of PyTorch's two hooks of these names, with these differences:
// - PyTorch makes no scale smaller than 1.19e-7. So a row loses bits when its range is below 3e-5, and all bits when
//   its range is below 6e-8. Here the smallest scale is 1.18e-38, and the relative error does not depend on the range.
//   A row loses bits when its range is below 3e-36, and denormal numbers (below 1.18e-38) may become 0.
// - When a row holds an infinity or a NaN on any rank, every element of the row becomes NaN on all ranks. PyTorch fails
//   an assertion on that rank alone, or returns finite numbers.
// - A range that does not fit into float32 is handled correctly (PyTorch: NaN). A value within one scale of the largest
//   float32 may become infinite, and so may sums beyond the largest float32.
// - There is one collective instead of two. A bucket of an exact multiple of 512 elements has no empty row at its end.
//
// float64, float16 and bfloat16 buckets are cast to float32 first (float64 values beyond float32 become infinite), and
// the average is cast back. Buckets that are not of a floating-point type go through allreduce_hook(). A bucket on a
// device is encoded and decoded there.
#pragma once

#include <cstdint>
#include <memory>

#include "gradwire/ddp/comm_hook.h"
#include "gradwire/process_group/process_group.h"

namespace gradwire {

// The bodies of the hooks. They use the all_gather of `group` (null: bucket.group()), and write the averages into
// bucket.buffer(). The future holds bucket.buffer(), or the error of the collective.
Future quantization_pertensor_hook(const std::shared_ptr<ProcessGroup>& group, GradBucket& bucket);
Future quantization_perchannel_hook(const std::shared_ptr<ProcessGroup>& group, GradBucket& bucket);

// The number of elements in a row of quantization_perchannel_hook().
inline constexpr std::int64_t kQuantizationRow = 512;

// The same as hooks to register. `group` as above.
std::shared_ptr<CommHook> make_quantization_pertensor_hook(std::shared_ptr<ProcessGroup> group = nullptr);
std::shared_ptr<CommHook> make_quantization_perchannel_hook(std::shared_ptr<ProcessGroup> group = nullptr);

}  // namespace gradwire
