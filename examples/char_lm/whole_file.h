// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// A file that is there whole or not at all.
#pragma once

#include <cstddef>
#include <string>

#include "gradwire/base/os_handles.h"

namespace char_lm {

// What is written goes to `<path>.part`, which takes the place of `path` when all of it is on the disk. Without
// finish(), `path` stays as it was and `<path>.part` is removed.
class WholeFile {
 public:
  explicit WholeFile(std::string path);
  ~WholeFile();
  WholeFile(const WholeFile&) = delete;
  WholeFile& operator=(const WholeFile&) = delete;

  // Appends bytes. Throws nothing, because libtorch's archive writer ends the process when what it writes with does:
  // the first error is kept for finish(), and what comes after it is dropped.
  void write(const void* data, std::size_t bytes) noexcept;

  // Throws std::runtime_error, with the path and the system's reason, when anything went wrong from the start.
  void finish();

 private:
  void remember_error() noexcept;

  std::string path_;
  std::string unfinished_;
  gradwire::UniqueFd file_;
  int error_ = 0;  // errno's value
  bool finished_ = false;
};

}  // namespace char_lm
