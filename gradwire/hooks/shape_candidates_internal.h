// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The shapes of the reduction that the hook "auto" tries, and how they are saved.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "gradwire/ddp/reduction_shape.h"

namespace gradwire::internal {

// The shapes to try, in the order of preference; the first is DDP's own. At most four: DDP's own buckets, buckets of
// 2 MiB, one bucket for each dtype, and twice as many lanes. Shapes with the same buckets and lanes as an earlier one
// are left out. `freedom` is the same on all ranks, and so is the result.
std::vector<ReductionShape> candidate_shapes(const ShapeFreedom& freedom);

// "DDP's own buckets and lanes", "buckets of 2048 KiB, 4 lanes"
std::string text_of(const ReductionShape& shape);

// Numbers for the shapes, and the shapes of such numbers; nothing for numbers that are none.
std::vector<double> numbers_of(const std::vector<ReductionShape>& shapes);
std::optional<std::vector<ReductionShape>> shapes_of(std::span<const double> numbers);

}  // namespace gradwire::internal
