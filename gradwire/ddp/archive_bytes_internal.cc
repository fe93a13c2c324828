// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/ddp/archive_bytes_internal.h"

#include <cstddef>

namespace gradwire::internal {

std::string archive_bytes(torch::serialize::OutputArchive& archive) {
  std::size_t size = 0;
  archive.save_to([&](const void*, std::size_t bytes) {
    size += bytes;
    return bytes;
  });
  std::string text;
  text.reserve(size);
  archive.save_to([&](const void* data, std::size_t bytes) {
    text.append(static_cast<const char*>(data), bytes);
    return bytes;
  });
  return text;
}

torch::serialize::InputArchive read_archive(std::string_view bytes, const c10::Device& device) {
  torch::serialize::InputArchive archive;
  archive.load_from(bytes.data(), bytes.size(), device);
  return archive;
}

}  // namespace gradwire::internal
