// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/ddp/bucket_plan.h"

#include <algorithm>
#include <map>
#include <utility>

#include "gradwire/base/error.h"

namespace gradwire {
namespace {

struct PlannedBucket {
  std::vector<std::size_t> indices;
  std::size_t first = 0;  // the positions of its first and last gradient in the input
  std::size_t last = 0;
};

// The bucket that is being filled for one (dtype, device).
struct OpenBucket {
  PlannedBucket bucket;
  std::size_t bytes = 0;
  std::size_t closed = 0;  // the number of closed buckets of this kind
};

void require_caps(const BucketCaps& caps) {
  if (caps.empty()) throw InvalidArgument("A bucket plan needs at least one cap; the list of caps is empty.");
  if (std::find(caps.begin(), caps.end(), std::size_t{0}) != caps.end()) {
    throw InvalidArgument("A bucket cap of 0 bytes was given; caps are at least 1 byte.");
  }
}

void append(PlannedBucket& bucket, std::size_t index, std::size_t position) {
  if (bucket.indices.empty()) bucket.first = position;
  bucket.indices.push_back(index);
  bucket.last = position;
}

std::vector<PlannedBucket> assign(std::span<const TensorSpec> tensors, const BucketCaps& caps) {
  require_caps(caps);
  std::map<std::pair<std::int32_t, std::int32_t>, OpenBucket> open;
  std::vector<PlannedBucket> planned;
  for (std::size_t position = 0; position < tensors.size(); ++position) {
    const TensorSpec& tensor = tensors[position];
    if (tensor.sparse) {
      append(planned.emplace_back(), tensor.index, position);
      continue;
    }
    OpenBucket& current = open[{tensor.dtype, tensor.device}];
    append(current.bucket, tensor.index, position);
    current.bytes += tensor.bytes;
    if (current.bytes >= caps[std::min(current.closed, caps.size() - 1)]) {
      planned.push_back(std::exchange(current.bucket, {}));
      current.bytes = 0;
      ++current.closed;
    }
  }
  for (auto& [kind, rest] : open) {
    if (!rest.bucket.indices.empty()) planned.push_back(std::move(rest.bucket));
  }
  return planned;
}

BucketPlan strip(std::vector<PlannedBucket> planned) {
  BucketPlan plan;
  plan.reserve(planned.size());
  for (PlannedBucket& bucket : planned) plan.push_back(std::move(bucket.indices));
  return plan;
}

}  // namespace

BucketCaps bucket_caps(std::optional<std::size_t> explicit_bytes) {
  if (explicit_bytes) return {*explicit_bytes};
  return {kDefaultFirstBucketBytes, kDefaultBucketBytes};
}

BucketPlan plan_buckets(std::span<const TensorSpec> tensors, const BucketCaps& caps) {
  std::vector<PlannedBucket> planned = assign(tensors, caps);
  std::sort(planned.begin(), planned.end(), [](const auto& a, const auto& b) { return a.last < b.last; });
  return strip(std::move(planned));
}

BucketPlan plan_initial_buckets(std::span<const TensorSpec> tensors, const BucketCaps& caps) {
  std::vector<PlannedBucket> planned = assign(tensors, caps);
  std::sort(planned.begin(), planned.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  return strip(std::move(planned));
}

}  // namespace gradwire
