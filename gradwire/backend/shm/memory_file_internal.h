// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Memory that can be passed to other processes and has no name. Any thread may call these functions.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "gradwire/base/os_handles.h"

namespace gradwire::shm {

// A file of `bytes` that only its descriptors hold: a sealed memfd, which nobody can shrink under a reader; or, where
// GRADWIRE_SHM_FOLDER is set or the kernel has no memfd, an unlinked file. Its pages are not there yet. Throws
// ResourceError.
UniqueFd make_memory_file(std::size_t bytes);

// Takes the pages of [begin, begin + bytes) now, so that touching them later cannot fail (a fault on a full file system
// is a SIGBUS). Throws ResourceError with the sizes and what to do; pages that were taken until then stay with the
// file. Signals that come meanwhile are handled and do not stop this, at whatever rate up to some thousands a second.
void reserve_pages(int fd, std::size_t begin, std::size_t bytes);

// Why a file that another process sent must not be mapped; empty when it may be. It must be a file of at least `bytes`
// bytes that nobody can open by a name, and a memfd must be sealed against shrinking: a mapping of a file that is
// shorter, or gets shorter, ends its reader with a SIGBUS.
std::string why_not_mapped(int fd, std::size_t bytes);

// The memory limit of this process's control group, if it has one; `root` is where the cgroup file system is mounted.
std::optional<std::size_t> control_group_limit(const std::string& root = "/sys/fs/cgroup",
                                               const std::string& membership = "/proc/self/cgroup");

// The memory that programs can still have, as the kernel estimates it (MemAvailable and free swap), if it says so.
std::optional<std::size_t> available_memory(const std::string& path = "/proc/meminfo");

}  // namespace gradwire::shm
