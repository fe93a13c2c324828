// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The bucket plan: which gradients share a bucket. A bucket is a set of gradients that one collective reduces.
//
// All functions here are pure, thread-safe and free of torch. Equal input gives the equal plan on every rank.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <vector>

namespace gradwire {

// 1 MiB: the first bucket is small, so that communication starts early.
inline constexpr std::size_t kDefaultFirstBucketBytes = std::size_t{1} << 20;
// 25 MiB.
inline constexpr std::size_t kDefaultBucketBytes = std::size_t{25} << 20;
// A cap that no bucket reaches.
inline constexpr std::size_t kUnlimitedBucketBytes = std::numeric_limits<std::size_t>::max();

// One gradient, as the planner sees it. Gradients of different dtypes or different devices never share a bucket.
struct TensorSpec {
  std::size_t index = 0;    // the parameter's number: the plan lists these numbers
  std::size_t bytes = 0;    // the size of the gradient
  std::int32_t dtype = 0;   // a number for the dtype; any numbering will do
  std::int32_t device = 0;  // a number for the device; any numbering will do
  bool sparse = false;      // a sparse gradient has a bucket of its own
};

// The caps of the buckets in bytes. caps[k] is the cap of the k-th bucket of each (dtype, device); the last cap also
// holds for all later buckets. There is at least one cap, and every cap is at least 1.
using BucketCaps = std::vector<std::size_t>;

// Returns the caps of a plan: 1 MiB for the first bucket and 25 MiB for the others. A cap that the caller gives holds
// for all buckets, the first one included (as in PyTorch).
BucketCaps bucket_caps(std::optional<std::size_t> explicit_bytes = std::nullopt);

// For each bucket, the numbers (TensorSpec::index) of its gradients. The buckets come in the order in which they are
// launched.
using BucketPlan = std::vector<std::vector<std::size_t>>;

// Plans the buckets for gradients that become ready in the order of `tensors`. A bucket takes gradients in that order
// and closes with the gradient that reaches the cap. So a bucket may exceed its cap by less than one gradient. The
// buckets come in the order in which their last gradients become ready. Throws InvalidArgument when `caps` is empty or
// holds 0.
BucketPlan plan_buckets(std::span<const TensorSpec> tensors, const BucketCaps& caps);

// Plans the buckets before any backward pass has shown the order of the gradients. `tensors` are in the order of the
// parameters; the plan assumes that the backward pass goes through the parameters in reverse. Within a bucket the
// gradients keep the order of `tensors`, as in PyTorch. The bucket with the last parameters comes first. Throws
// InvalidArgument as plan_buckets() does.
BucketPlan plan_initial_buckets(std::span<const TensorSpec> tensors, const BucketCaps& caps);

}  // namespace gradwire
