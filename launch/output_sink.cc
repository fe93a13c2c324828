// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "launch/output_sink.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>

#include "gradwire/base/strings.h"

namespace gradwire::launch {
namespace {

bool is_regular(int fd) {
  struct stat status {};
  return ::fstat(fd, &status) == 0 && S_ISREG(status.st_mode);
}

}  // namespace

OutputSink::OutputSink(int fd) : fd_(fd), file_(is_regular(fd)), terminal_(::isatty(fd) == 1) {
  // A terminal says that it is ready when it takes one byte, and a write of more blocks. Opened again it is this
  // object's alone to make non-blocking. That fails where the terminal belongs to another user.
  if (terminal_) {
    const std::string path = concat("/proc/self/fd/", fd);
    own_ = UniqueFd(::open(path.c_str(), O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  }
  if (own_) fd_ = own_.get();
}

void OutputSink::flush_some() {
  while (!empty()) {
    pollfd ready{fd_, POLLOUT, 0};
    if (!file_ && ::poll(&ready, 1, 0) != 1) break;
    const std::size_t waiting = queue_.size() - sent_;
    const ssize_t written =
        ::write(fd_, queue_.data() + sent_, file_ ? waiting : std::min<std::size_t>(waiting, PIPE_BUF));
    if (written >= 0) {
      sent_ += static_cast<std::size_t>(written);
    } else if (errno == EAGAIN) {
      break;
    } else if (errno != EINTR) {
      gone_ = true;
      failure_ = errno == EPIPE ? 0 : errno;
      sent_ = queue_.size();
    }
  }
  if (empty() || sent_ > kCongested) {
    queue_.erase(0, sent_);
    sent_ = 0;
  }
}

}  // namespace gradwire::launch
