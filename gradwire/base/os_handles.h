// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Owners of file descriptors and of mapped memory.
#pragma once

#include <cstddef>
#include <utility>

namespace gradwire {

// Owns a file descriptor. The destructor closes the descriptor. Movable, not copyable.
class UniqueFd {
 public:
  UniqueFd() noexcept = default;
  explicit UniqueFd(int fd) noexcept : fd_(fd) {}  // owns `fd`; a negative one means none
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~UniqueFd() { reset(); }

  int get() const noexcept { return fd_; }                      // -1: none
  explicit operator bool() const noexcept { return fd_ >= 0; }  // whether there is one
  int release() noexcept { return std::exchange(fd_, -1); }     // the caller owns it now
  void reset() noexcept;                                        // closes it

 private:
  int fd_ = -1;
};

// Owns mapped memory (mmap). The destructor unmaps the memory. Movable, not copyable.
class Mapping {
 public:
  Mapping() noexcept = default;
  // Maps `bytes` bytes of `fd`: shared, readable and writable. Throws ResourceError when the kernel refuses.
  static Mapping of_file(int fd, std::size_t bytes);
  // Maps `bytes` bytes of zeroed private memory. Throws ResourceError when the kernel refuses.
  static Mapping anonymous(std::size_t bytes);

  Mapping(Mapping&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  Mapping& operator=(Mapping&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~Mapping();

  std::byte* data() const noexcept { return static_cast<std::byte*>(data_); }  // null when nothing is mapped
  std::size_t bytes() const noexcept { return bytes_; }                        // the length of the mapping

 private:
  Mapping(void* data, std::size_t bytes) noexcept : data_(data), bytes_(bytes) {}
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace gradwire
