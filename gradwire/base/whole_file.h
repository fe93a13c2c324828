// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// A file that is replaced as a whole or not at all.
#pragma once

#include <cstddef>
#include <string>

#include "gradwire/base/os_handles.h"

namespace gradwire {

// Brings the name of the file `path` in its folder to the disk, where the system allows it: a folder that may not be
// read, and some network file systems, do not.
void bring_name_to_disk(const std::string& path);

// Writes go to `<path>.part`. finish() replaces `path` by this file when all of it is on the disk, and then brings the
// new name to the disk too, where the file system can. Without finish(), `path` does not change, and `<path>.part` is
// removed. Not thread-safe.
class WholeFile {
 public:
  // Opens `<path>.part`. Does not throw when that fails: finish() does.
  explicit WholeFile(std::string path);
  ~WholeFile();
  WholeFile(const WholeFile&) = delete;
  WholeFile& operator=(const WholeFile&) = delete;

  // Appends bytes. Throws nothing, because libtorch's archive writer ends the process when its write function throws.
  // The first error is kept for finish(), and later bytes are dropped.
  void write(const void* data, std::size_t bytes) noexcept;

  // Completes the file. Throws ResourceError, with the path and the system's reason, when any step has failed
  // since construction.
  void finish();

 private:
  void remember_error() noexcept;

  std::string path_;
  std::string unfinished_;
  UniqueFd file_;
  int error_ = 0;  // errno's value
  bool finished_ = false;
};

}  // namespace gradwire
