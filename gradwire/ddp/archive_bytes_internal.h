// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// libtorch's archives as bytes in memory. Both functions throw what libtorch throws.
#pragma once

#include <c10/core/Device.h>
#include <torch/serialize/archive.h>

#include <string>
#include <string_view>

namespace gradwire::internal {

// The bytes that `archive` would write to a file. Goes through the archive twice: to measure it, and to write it into
// memory of that size. A stream that grows would copy a large archive several times.
std::string archive_bytes(torch::serialize::OutputArchive& archive);

// The archive that these bytes hold, with its tensors on `device`. Reads all of `bytes` at once.
torch::serialize::InputArchive read_archive(std::string_view bytes, const c10::Device& device = c10::DeviceType::CPU);

}  // namespace gradwire::internal
