// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "launch/rendezvous_folder.h"

#include <cstdlib>
#include <filesystem>

#include "gradwire/base/environment.h"
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

}  // namespace gradwire::launch
