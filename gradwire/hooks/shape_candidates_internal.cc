// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/hooks/shape_candidates_internal.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "gradwire/base/strings.h"

namespace gradwire::internal {
namespace {

constexpr std::size_t kSmallBuckets = std::size_t{2} << 20;
constexpr std::size_t kOneBucket = std::size_t{1} << 40;  // more than any bucket has
constexpr int kMostLanes = 8;
constexpr std::size_t kMostShapes = 16;  // in numbers that are read

// A whole number from 0 to `high`.
bool is_whole(double value, double high) { return value >= 0 && value <= high && value == std::floor(value); }

}  // namespace

std::vector<ReductionShape> candidate_shapes(const ShapeFreedom& freedom) {
  std::vector<ReductionShape> shapes{{}};
  std::vector<BucketPlan> plans{freedom.plan_for(0)};
  if (freedom.buckets) {
    for (const std::size_t cap : {kSmallBuckets, kOneBucket}) {
      BucketPlan plan = freedom.plan_for(cap);
      if (std::find(plans.begin(), plans.end(), plan) != plans.end()) continue;
      plans.push_back(std::move(plan));
      shapes.push_back({cap, 0});
    }
  }
  // Lanes share the buckets: the plan with the most buckets gains most from them.
  const auto most = std::max_element(plans.begin(), plans.end(),
                                     [](const BucketPlan& a, const BucketPlan& b) { return a.size() < b.size(); });
  const int lanes = std::min(2 * freedom.own_lanes, kMostLanes);
  if (freedom.lanes && lanes > freedom.own_lanes && most->size() > static_cast<std::size_t>(freedom.own_lanes)) {
    shapes.push_back({shapes[static_cast<std::size_t>(most - plans.begin())].cap_bytes, lanes});
  }
  return shapes;
}

std::string text_of(const ReductionShape& shape) {
  std::string buckets = concat("buckets of ", shape.cap_bytes >> 10, " KiB");
  if (shape.cap_bytes == 0) buckets = "DDP's own buckets";
  if (shape.cap_bytes >= kOneBucket) buckets = "one bucket";
  if (shape.lanes == 0) return shape.cap_bytes == 0 ? "DDP's own buckets and lanes" : buckets;
  return concat(buckets, ", ", shape.lanes, shape.lanes == 1 ? " lane" : " lanes");
}

std::vector<double> numbers_of(const std::vector<ReductionShape>& shapes) {
  std::vector<double> numbers;
  for (const ReductionShape& shape : shapes) {
    numbers.push_back(static_cast<double>(shape.cap_bytes));
    numbers.push_back(shape.lanes);
  }
  return numbers;
}

std::optional<std::vector<ReductionShape>> shapes_of(std::span<const double> numbers) {
  if (numbers.empty() || numbers.size() % 2 != 0 || numbers.size() > 2 * kMostShapes) return std::nullopt;
  std::vector<ReductionShape> shapes;
  for (std::size_t i = 0; i < numbers.size(); i += 2) {
    if (!is_whole(numbers[i], 0x1p52) || !is_whole(numbers[i + 1], kMostLanes)) return std::nullopt;
    shapes.push_back({static_cast<std::size_t>(numbers[i]), static_cast<int>(numbers[i + 1])});
  }
  return shapes;
}

}  // namespace gradwire::internal
