// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/observe/flight_memory_internal.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <exception>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>

#include "gradwire/base/environment.h"
#include "gradwire/base/notice.h"
#include "gradwire/base/os_handles.h"
#include "gradwire/base/strings.h"

namespace gradwire::observe {
namespace {

// What the recorder holds until the end of the process.
struct Held {
  UniqueFd file;  // with the lock that keeps other writers away
  Mapping mapping;
};

// Whether no other process writes the file. The lock is of the process: unlike flock() and F_OFD_SETLK, the kernel
// takes the lock away when the process ends, although children that the process forked still have the file open and
// mapped.
bool lock(int file) noexcept {
  struct flock whole {};
  whole.l_type = F_WRLCK;
  whole.l_whence = SEEK_SET;
  return ::fcntl(file, F_SETLK, &whole) == 0;
}

// Whether a file is empty or a recorder's, and not another program's that was named by mistake.
bool is_recorders(int file, off_t size) noexcept {
  static_assert(offsetof(format::File, magic) == 0);
  std::uint64_t first = 0;
  if (size == 0) return true;
  if (::pread(file, &first, sizeof(first), 0) != static_cast<ssize_t>(sizeof(first))) return false;
  const bool has_size =
      size == static_cast<off_t>(format::kFileBytes) || size == static_cast<off_t>(format::kLongFileBytes);
  return first == format::kMagic || (first == 0 && has_size);
}

void warn_of(const std::string& path, std::string_view problem) {
  log::notice(
      concat("GRADWIRE_FLIGHT_RECORDER: '", path, "' ", problem, "; the flight recorder keeps its records in memory"));
}

// A file that is long enough and that no other process writes, and how much of it is used; none where there is no such
// file. Makes its folder. Throws where there is no memory for the path.
UniqueFd open_file(const std::string& path, std::size_t& bytes) {
  std::error_code error;  // seen by open()
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), error);
  UniqueFd file(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!file) {
    warn_of(path, concat("cannot be opened: ", std::strerror(errno)));
    return {};
  }
  struct stat status {};
  if (::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode)) return {};
  // Not worth a word: a rank's child has the same variable.
  if (!lock(file.get())) return {};
  if (!is_recorders(file.get(), status.st_size)) {
    warn_of(path, "is another program's file, and is left as it is");
    return {};
  }
  const bool is_long = status.st_size >= static_cast<off_t>(format::kLongFileBytes);
  bytes = is_long ? format::kLongFileBytes : format::kFileBytes;
  // With room on the disk, also where the file has holes, so that writing to the mapping never fails.
  if (const int problem = ::posix_fallocate(file.get(), 0, static_cast<off_t>(format::kFileBytes)); problem != 0) {
    warn_of(path, concat("gets no room: ", std::strerror(problem)));
    return {};
  }
  return file;
}

// Writes all of `to` but its generation, which is odd meanwhile, so that readers take no part of it for a table.
template <class Write>
void write_all(format::File& to, std::uint64_t earlier_generation, const Write& write) noexcept {
  to.generation.store(earlier_generation | 1, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);  // who sees what is written sees the odd number
  auto* const bytes = reinterpret_cast<std::byte*>(&to);
  constexpr std::size_t kBefore = offsetof(format::File, generation);
  constexpr std::size_t kBehind = kBefore + sizeof(format::Word);
  write(bytes, 0, kBefore);
  write(bytes + kBehind, kBehind, format::kFileBytes - kBehind);
  to.generation.store((earlier_generation | 1) + 1, std::memory_order_release);
}

// Copies the records of the process before into the file's room for them, where there is room.
void keep_records(format::File& file, int descriptor) noexcept {
  const std::uint64_t generation = file.generation.load(std::memory_order_relaxed);
  const std::size_t place = 1 + generation / 2 % format::kEarlier;
  const auto offset = static_cast<off_t>(place * format::kFileBytes);
  if (::posix_fallocate(descriptor, offset, static_cast<off_t>(format::kFileBytes)) != 0) return;
  format::File& kept = *(&file + place);
  const auto* const from = reinterpret_cast<const std::byte*>(&file);
  write_all(kept, kept.generation.load(std::memory_order_relaxed),
            [from](std::byte* to, std::size_t at, std::size_t bytes) { std::copy_n(from + at, bytes, to); });
}

}  // namespace

void start_afresh(format::File& file, int descriptor, std::size_t bytes) noexcept {
  const std::uint64_t generation = file.generation.load(std::memory_order_relaxed);
  const bool was_cleared_in_part = generation % 2 != 0;
  const std::uint64_t magic = file.magic.load(std::memory_order_relaxed);
  if (!was_cleared_in_part && magic == 0) return;  // zeros, of which a part may have no memory yet
  const bool has_records = !was_cleared_in_part && magic == format::kMagic;
  if (has_records && bytes >= format::kLongFileBytes) keep_records(file, descriptor);
  write_all(file, generation,
            [](std::byte* to, std::size_t, std::size_t count) { std::fill_n(to, count, std::byte{0}); });
}

format::File* open_flight_memory() {
  const std::optional<std::string> place = environment("GRADWIRE_FLIGHT_RECORDER");
  if (place == "off") return nullptr;
  auto held = std::make_unique<Held>();
  std::size_t bytes = format::kFileBytes;
  if (place) held->file = open_file(*place, bytes);
  if (held->file) {
    held->mapping = Mapping::of_file(held->file.get(), bytes);
    start_afresh(*reinterpret_cast<format::File*>(held->mapping.data()), held->file.get(), bytes);
  } else {
    held->mapping = Mapping::anonymous(format::kFileBytes);
  }
  return reinterpret_cast<format::File*>(held.release()->mapping.data());
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
