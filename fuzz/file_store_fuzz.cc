// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Feeds arbitrary bytes to the reader of a FileStore's file. It may refuse them with StoreError; if it takes them, a
// record that is appended then comes back, and so do the records before it.
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "gradwire/base/error.h"
#include "gradwire/base/os_handles.h"
#include "gradwire/store/file_log_internal.h"

using gradwire::Deadline;
using gradwire::store_internal::FileLog;
using gradwire::store_internal::FileRecord;
using Locked = FileLog::Locked;

namespace {

void require(bool condition) {
  if (!condition) __builtin_trap();
}

std::vector<FileRecord> read_all(const std::string& path) {
  FileLog log(path);
  return Locked(log, Locked::Mode::shared, Deadline::never()).read();
}

void try_bytes(const std::string& path) {
  const std::size_t before = read_all(path).size();
  {
    FileLog log(path);
    Locked file(log, Locked::Mode::exclusive, Deadline::never());
    require(file.read().size() == before);
    file.append({FileRecord::Kind::set, "key", "value"});
  }
  const auto after = read_all(path);
  require(after.size() == before + 1 && after.back().key == "key" && after.back().value == "value");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const gradwire::UniqueFd memory(::memfd_create("fuzz", MFD_CLOEXEC));
  // Half of the inputs get a right header, to reach what is behind it.
  const std::string magic("gwstore\x01", 8);
  if (size > 0 && data[0] % 2 == 0) require(::write(memory.get(), magic.data(), magic.size()) == 8);
  if (size > 1) require(::write(memory.get(), data + 1, size - 1) == static_cast<ssize_t>(size - 1));
  try {
    try_bytes("/proc/self/fd/" + std::to_string(memory.get()));
  } catch (const gradwire::StoreError&) {
  }
  return 0;
}
