// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/store/secret.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "gradwire/base/error.h"
#include "gradwire/base/os_handles.h"
#include "gradwire/base/strings.h"

namespace gradwire {
namespace {

void require_length(const std::string& secret, const std::string& where) {
  if (secret.empty()) throw InvalidArgument(concat("the secret in ", where, " is empty"));
  if (secret.size() > kMaxSecretBytes) {
    throw InvalidArgument(concat("the secret in ", where, " is longer than ", kMaxSecretBytes, " bytes"));
  }
}

[[noreturn]] void fail_to_read(const std::string& path) {
  throw InvalidArgument(concat("cannot read the secret in '", path, "': ", std::strerror(errno)));
}

// What ssh asks of a private key, and that nobody outside the group may use the file, whoever owns it.
void require_private(const std::string& path, const struct stat& status) {
  const mode_t forbidden = status.st_uid == ::geteuid() ? S_IRWXG | S_IRWXO : S_IRWXO;
  if ((status.st_mode & forbidden) == 0) return;
  const int mode = static_cast<int>(status.st_mode & 07777);
  throw InvalidArgument(concat("other users may use the secret in '", path, "' (its mode is 0", mode >> 6 & 7,
                               mode >> 3 & 7, mode & 7, "); take their permissions away: chmod 600 '", path,
                               "', and draw a new secret if somebody may have read this one"));
}

// The first `most` bytes of a file at most.
std::string read_bytes(int fd, const std::string& path, std::size_t most) {
  std::string bytes(most, '\0');
  std::size_t done = 0;
  while (done < most) {
    const ssize_t count = ::read(fd, bytes.data() + done, most - done);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail_to_read(path);
    if (count == 0) break;
    done += static_cast<std::size_t>(count);
  }
  bytes.resize(done);
  return bytes;
}

}  // namespace

std::string read_secret_file(const std::string& path) {
  // A pipe that nobody writes to has no secret, and would be waited for; one that somebody writes to is read.
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat status {};
  if (!file || ::fstat(file.get(), &status) != 0 || ::fcntl(file.get(), F_SETFL, O_RDONLY) != 0) fail_to_read(path);
  require_private(path, status);
  std::string secret = read_bytes(file.get(), path, kMaxSecretBytes + 3);
  if (secret.ends_with('\n')) secret.pop_back();
  if (secret.ends_with('\r')) secret.pop_back();
  require_length(secret, concat("'", path, "'"));
  return secret;
}

std::string secret_from_environment(const std::function<std::optional<std::string>(const char* name)>& read) {
  if (const auto path = read("GRADWIRE_SECRET_FILE")) return read_secret_file(*path);
  std::string secret = read("GRADWIRE_SECRET").value_or("");
  if (!secret.empty()) require_length(secret, "the environment variable GRADWIRE_SECRET");
  return secret;
}

}  // namespace gradwire
