// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Which gradients travel together: a pure, torch-free function from sizes to buckets.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <vector>

namespace gradwire {

inline constexpr std::size_t kDefaultFirstBucketBytes = std::size_t{1}
                                                        << 20;  // 1 MiB: small, so that communication starts early
inline constexpr std::size_t kDefaultBucketBytes = std::size_t{25} << 20;  // 25 MiB
inline constexpr std::size_t kUnlimitedBucketBytes = std::numeric_limits<std::size_t>::max();

// One gradient, as the planner sees it.
struct TensorSpec {
  std::size_t index = 0;  // the parameter's number; what the plan lists
  std::size_t bytes = 0;
  std::int32_t dtype = 0;  // gradients of different dtype or device never share a bucket; any numbering will do
  std::int32_t device = 0;
  bool sparse = false;  // a sparse gradient has a bucket of its own
};

// Upper sizes of the buckets: `caps[k]` is for the k-th bucket of a (dtype, device), the last one for all later ones.
// Not empty.
using BucketCaps = std::vector<std::size_t>;

// The caps of a plan: none given, 1 MiB and then 25 MiB; an explicit cap holds for the first bucket too (as in
// PyTorch).
BucketCaps bucket_caps(std::optional<std::size_t> explicit_bytes = std::nullopt);

// The numbers of the gradients of each bucket, in the order in which the buckets are to be launched.
using BucketPlan = std::vector<std::vector<std::size_t>>;

// Plans for gradients that become ready in the order of `tensors`: a bucket takes them in that order and closes after
// the one that reaches its cap, so it may be larger than the cap by less than one gradient. Buckets come in the order
// in which their last gradient becomes ready. Throws InvalidArgument when `caps` is empty or holds 0. Deterministic:
// equal input gives the equal plan on every rank.
BucketPlan plan_buckets(std::span<const TensorSpec> tensors, const BucketCaps& caps);

// Plans for parameters in the order of `tensors` before any backward pass has shown the order of their gradients:
// backward is taken to go through them in reverse. Within a bucket they keep the order of `tensors`, as in PyTorch; the
// bucket with the last parameters comes first.
BucketPlan plan_initial_buckets(std::span<const TensorSpec> tensors, const BucketCaps& caps);

}  // namespace gradwire
