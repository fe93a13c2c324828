// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "launch/rendezvous_folder.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "gradwire/base/environment.h"
#include "gradwire/base/os_handles.h"
#include "gradwire/base/strings.h"
#include "launch/launch_error.h"

namespace gradwire::launch {

RendezvousFolder::RendezvousFolder() {
  const std::string parent = environment("TMPDIR").value_or("/tmp");
  std::error_code ignored;
  path_ = std::filesystem::absolute(parent, ignored).string() + "/gradwire-run-XXXXXX";
  if (::mkdtemp(path_.data()) == nullptr) {
    throw_errno(concat("cannot make the folder where the ranks meet in '", parent, "' (set TMPDIR to another place)"));
  }
}

RendezvousFolder::~RendezvousFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::string RendezvousFolder::store_file(int attempt) const { return concat(path_, "/store-", attempt); }

std::string RendezvousFolder::keep_secret(const std::string& secret) const {
  std::string path = path_ + "/secret";
  const UniqueFd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  if (!file || ::write(file.get(), secret.data(), secret.size()) != static_cast<ssize_t>(secret.size())) {
    throw_errno(concat("cannot write '", path, "'"));
  }
  return path;
}

}  // namespace gradwire::launch
