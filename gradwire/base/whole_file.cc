// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/base/whole_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"

namespace gradwire {

void bring_name_to_disk(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? std::string(".") : path.substr(0, slash + 1);
  const UniqueFd opened(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (opened) static_cast<void>(::fsync(opened.get()));
}

WholeFile::WholeFile(std::string path)
    : path_(std::move(path)),
      unfinished_(path_ + ".part"),
      file_(::open(unfinished_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666)) {
  if (!file_) remember_error();
}

WholeFile::~WholeFile() {
  if (file_ && !finished_) ::unlink(unfinished_.c_str());
}

void WholeFile::remember_error() noexcept {
  if (error_ == 0) error_ = errno;
}

void WholeFile::write(const void* data, std::size_t bytes) noexcept {
  const char* from = static_cast<const char*>(data);
  while (error_ == 0 && bytes > 0) {
    const ssize_t count = ::write(file_.get(), from, bytes);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return remember_error();
    from += count;
    bytes -= static_cast<std::size_t>(count);
  }
}

void WholeFile::finish() {
  // A disk may say only now that it is full.
  if (error_ == 0 && ::fsync(file_.get()) != 0) remember_error();
  if (error_ == 0 && std::rename(unfinished_.c_str(), path_.c_str()) != 0) remember_error();
  if (error_ != 0) {
    throw ResourceError(concat("the file ", path_, " could not be written: ", std::strerror(error_)));
  }
  finished_ = true;
  // A program may remove the file before this one now, which a power cut must not leave it without.
  bring_name_to_disk(path_);
}

}  // namespace gradwire
