// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/backend/shm/memory_file_internal.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <string_view>

#include "gradwire/base/environment.h"
#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"

namespace gradwire::shm {
namespace {

UniqueFd make_unlinked_file(const std::string& folder) {
  UniqueFd fd(::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  if (fd) return fd;
  // Not every file system has O_TMPFILE: make a name and take it away at once.
  std::string name = folder + "/gradwire-XXXXXX";
  fd = UniqueFd(::mkostemp(name.data(), O_CLOEXEC));
  if (!fd) throw ResourceError(concat("cannot make a file for shared memory in ", folder, ": ", std::strerror(errno)));
  ::unlink(name.c_str());
  return fd;
}

bool is_memfd(int fd) {
  std::array<char, 16> name{};
  const ssize_t length = ::readlink(concat("/proc/self/fd/", fd).c_str(), name.data(), name.size());
  return std::string_view(name.data(), static_cast<std::size_t>(std::max<ssize_t>(length, 0))).starts_with("/memfd:");
}

void set_length(int fd, std::size_t bytes) {
  if (::ftruncate(fd, static_cast<off_t>(bytes)) != 0) {
    throw ResourceError(concat("cannot make ", bytes, " bytes of shared memory: ", std::strerror(errno)));
  }
}

std::optional<std::size_t> read_limit(const std::string& path) {
  std::ifstream file(path);
  std::size_t limit = 0;
  // "max" (version 2) is no number; version 1 writes a huge one for no limit, which no request exceeds.
  if (!(file >> limit)) return std::nullopt;
  return limit;
}

}  // namespace

std::optional<std::size_t> control_group_limit(const std::string& root, const std::string& membership) {
  std::ifstream groups(membership);
  std::optional<std::size_t> smallest;
  const auto consider = [&](const std::string& path) {
    const auto limit = read_limit(path);
    if (limit && (!smallest || *limit < *smallest)) smallest = limit;
  };
  // Lines are "0::/path" (version 2) or "7:memory:/path" (version 1). A limit anywhere up the path holds.
  for (std::string row; std::getline(groups, row);) {
    const bool unified = row.starts_with("0::");
    const auto memory = row.find(":memory:");
    if (!unified && memory == std::string::npos) continue;
    std::string path = unified ? row.substr(3) : row.substr(memory + 8);
    for (;;) {
      consider(unified ? root + path + "/memory.max" : root + "/memory" + path + "/memory.limit_in_bytes");
      if (path.empty() || path == "/") break;
      path.erase(path.rfind('/'));
    }
  }
  return smallest;
}

std::optional<std::size_t> available_memory(const std::string& path) {
  std::ifstream file(path);
  std::optional<std::size_t> available;
  for (std::string name, row; file >> name && std::getline(file, row);) {
    if (name != "MemAvailable:" && name != "SwapFree:") continue;
    available = available.value_or(0) + std::stoull(row) * 1024;
  }
  return available;
}

UniqueFd make_memory_file(std::size_t bytes) {
  // Taking more pages than there are would not fail but wake the kernel's out-of-memory killer.
  if (const auto available = available_memory(); available && bytes > *available) {
    throw ResourceError(concat(bytes, " bytes of shared memory are more than the ", *available,
                               " bytes that this machine has left; use smaller buckets or fewer ranks"));
  }
  if (const auto limit = control_group_limit(); limit && bytes > *limit) {
    throw ResourceError(concat(
        bytes, " bytes of shared memory are more than the ", *limit,
        " bytes that this process's control group may use; use smaller buckets or fewer ranks, or raise the limit"));
  }
  const auto folder = environment("GRADWIRE_SHM_FOLDER");
  if (!folder) {
    UniqueFd fd(::memfd_create("gradwire", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    if (fd) {
      set_length(fd.get(), bytes);
      if (::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
        throw ResourceError(concat("cannot seal shared memory: ", std::strerror(errno)));
      }
      return fd;
    }
    if (errno != ENOSYS && errno != EPERM) {
      throw ResourceError(concat("cannot make shared memory (memfd_create): ", std::strerror(errno)));
    }
  }
  UniqueFd fd = make_unlinked_file(folder.value_or(environment("TMPDIR").value_or("/tmp")));
  set_length(fd.get(), bytes);
  return fd;
}

// A signal makes the kernel give back all that one call has taken. With a timer that fires faster than a large call
// takes, the call would start again for ever, so it is cut in parts that get shorter with each signal.
void reserve_pages(int fd, std::size_t begin, std::size_t bytes) {
  constexpr std::size_t kLongest = std::size_t{64} << 20;
  constexpr std::size_t kShortest = std::size_t{64} << 10;
  std::size_t part = kLongest;
  for (std::size_t done = 0; done < bytes;) {
    const std::size_t length = std::min(part, bytes - done);
    const int error = ::posix_fallocate(fd, static_cast<off_t>(begin + done), static_cast<off_t>(length));
    if (error == EINTR) {
      part = std::max(kShortest, part / 2);
      continue;
    }
    if (error != 0) {
      throw ResourceError(concat("the system refused ", bytes, " bytes of shared memory: ", std::strerror(error),
                                 "; free memory, use smaller buckets or fewer ranks",
                                 environment("GRADWIRE_SHM_FOLDER") ? ", or name a larger GRADWIRE_SHM_FOLDER" : ""));
    }
    done += length;
    part = std::min(kLongest, part * 2);
  }
}

std::string why_not_mapped(int fd, std::size_t bytes) {
  struct stat about {};
  if (::fstat(fd, &about) != 0) return concat("it cannot be looked at: ", std::strerror(errno));
  if (!S_ISREG(about.st_mode)) return "it is no file";
  if (static_cast<std::size_t>(about.st_size) < bytes)
    return concat("it holds ", about.st_size, " bytes where ", bytes, " are needed");
  if (about.st_nlink != 0) return "it has a name, by which others may open it";
  // A file of a tmpfs answers too, and cannot be sealed.
  if (is_memfd(fd) && (::fcntl(fd, F_GET_SEALS) & F_SEAL_SHRINK) == 0)
    return "it is not sealed, so that its sender could shrink it";
  return "";
}

}  // namespace gradwire::shm
