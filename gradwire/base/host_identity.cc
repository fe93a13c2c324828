// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/base/host_identity.h"

#include <sys/stat.h>

#include <fstream>

#include "gradwire/base/environment.h"
#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"

namespace gradwire {

std::string boot_id() {
  std::string id;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), id);
  return id;
}

std::string network_namespace() {
  struct stat space {};
  return ::stat("/proc/self/ns/net", &space) == 0 ? std::to_string(space.st_ino) : "";
}

std::string host_identity() {
  if (const auto named = environment("GRADWIRE_HOST")) return concat("named ", *named);
  const std::string boot = boot_id();
  const std::string network = network_namespace();
  if (boot.empty() || network.empty()) {
    throw ResourceError(
        "cannot tell which host this is (no boot_id or no network namespace in /proc); give each host a name of its "
        "own in GRADWIRE_HOST, or name the backend");
  }
  return concat(boot, " ", network);
}

}  // namespace gradwire
