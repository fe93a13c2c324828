// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/observe/flight_memory_internal.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <algorithm>
#include <exception>
#include <memory>
#include <optional>
#include <string>

#include "gradwire/base/environment.h"
#include "gradwire/base/os_handles.h"

namespace gradwire::observe {
namespace {

// What the recorder holds until the end of the process.
struct Held {
  UniqueFd file;  // with the lock that keeps other writers away
  Mapping mapping;
};

// A file that is long enough and that no other process writes; none where there is no such file.
UniqueFd open_file(const std::string& path) noexcept {
  constexpr auto kBytes = static_cast<off_t>(format::kFileBytes);
  UniqueFd file(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  struct stat status {};
  if (!file || ::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode)) return {};
  if (::flock(file.get(), LOCK_EX | LOCK_NB) != 0) return {};
  // With room on the disk, also where the file has holes, so that writing to the mapping never fails.
  if (::posix_fallocate(file.get(), 0, kBytes) != 0) return {};
  return file;
}

void clear(format::File& file) noexcept {
  // The records of an earlier process. Readers see first that there is no recorder.
  if (file.magic.exchange(0) == 0) return;
  auto* const bytes = reinterpret_cast<std::byte*>(&file);
  std::fill(bytes, bytes + format::kFileBytes, std::byte{0});
}

}  // namespace

format::File* open_flight_memory() {
  const std::optional<std::string> place = environment("GRADWIRE_FLIGHT_RECORDER");
  if (place == "off") return nullptr;
  auto held = std::make_unique<Held>();
  if (place) held->file = open_file(*place);
  held->mapping =
      held->file ? Mapping::of_file(held->file.get(), format::kFileBytes) : Mapping::anonymous(format::kFileBytes);
  auto* const file = reinterpret_cast<format::File*>(held.release()->mapping.data());
  clear(*file);
  return file;
}

std::uint64_t ranks_of_environment() noexcept {
  constexpr long kMost = 1 << 24;
  try {
    const auto rank = environment_integer("RANK", 0, kMost);
    const auto world = environment_integer("WORLD_SIZE", 1, kMost);
    if (rank && world) return static_cast<std::uint64_t>(*rank) << 32 | static_cast<std::uint64_t>(*world);
  } catch (const std::exception&) {
    // The group says so when it reads them.
  }
  return ~std::uint64_t{0};
}

}  // namespace gradwire::observe
