// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Checks of averagers with a state of their own: over all ranks, at each call, and of a file.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/serialize/archive.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gradwire/process_group/process_group.h"

namespace gradwire::internal {

// Values that must be the same on all ranks, with their names for messages.
using Compared = std::vector<std::pair<const char*, std::int64_t>>;

// The number, dtypes, sizes and strides of `parameters`, as one value.
Compared::value_type compared_parameters(const std::vector<at::Tensor>& parameters);

// Collective: throws a MismatchError on all ranks that begins with `who` and names the first difference.
void require_agreement(std::string_view who, ProcessGroup& group, const Compared& compared);

// The same for one text, which may be long.
void require_agreement(std::string_view who, ProcessGroup& group, std::string_view name, const std::string& text);

// Throws InvalidArgument unless there are parameters, and each is a dense floating-point leaf and there once.
void require_floating_point(std::string_view who, const std::vector<at::Tensor>& parameters);

// Throws InvalidArgument unless `given`, at a step, are the tensors `expected`.
void require_same_parameters(std::string_view who, const std::vector<at::Tensor>& given,
                             const std::vector<at::Tensor>& expected, std::int64_t step);

// Throws InvalidArgument unless the archive has the text `identity` under `key`.
void require_saved_with(std::string_view who, torch::serialize::InputArchive& archive, const char* key,
                        const std::string& identity);

}  // namespace gradwire::internal
