// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/base/os_handles.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"

namespace gradwire {

void UniqueFd::reset() noexcept {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

Mapping Mapping::of_file(int fd, std::size_t bytes) {
  void* data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (data == MAP_FAILED) {
    throw ResourceError(concat("cannot map ", bytes, " bytes of shared memory: ", std::strerror(errno)));
  }
  return {data, bytes};
}

Mapping Mapping::anonymous(std::size_t bytes) {
  void* data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) {
    throw ResourceError(concat("cannot map ", bytes, " bytes of private memory: ", std::strerror(errno)));
  }
  return {data, bytes};
}

Mapping::~Mapping() {
  if (data_ != nullptr) ::munmap(data_, bytes_);
}

}  // namespace gradwire
