// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Texts and archives between ranks: bytes of any length. The functions with a group are collective, use broadcast and
// all_gather only (but give_bytes(), which sends messages too), and throw what these throw.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <string>
#include <vector>

#include "gradwire/process_group/process_group.h"

namespace gradwire::internal {

inline constexpr int kAllRanks = -1;

// A tensor of bytes that owns the memory of `text`.
at::Tensor tensor_of_text(std::string text);
// The bytes of a tensor as text.
std::string text_of_tensor(const at::Tensor& bytes);

// Returns the owner's `bytes` on rank `to`, or on all ranks, and an empty text on the others, which see the bytes pass
// in parts of at most 25 MiB. All ranks pass the `size` of the owner's bytes.
std::string transfer_bytes(ProcessGroup& group, std::string bytes, std::size_t size, int owner, int to);

// Returns the bytes of each rank, by rank, on rank `to`, and empty texts on the others.
std::vector<std::string> gather_bytes(ProcessGroup& group, std::string bytes, int to);

// Returns the owner's bytes on all ranks.
std::string broadcast_bytes(ProcessGroup& group, std::string bytes, int owner);

// Returns the owner's bytes on `receivers`, and an empty text on the others. The bytes go over the links between the
// owner and the receivers alone.
std::string give_bytes(ProcessGroup& group, std::string bytes, int owner, const std::vector<int>& receivers);

}  // namespace gradwire::internal
