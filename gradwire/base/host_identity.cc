// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/base/host_identity.h"

#include <sys/stat.h>

#include <fstream>

#include "gradwire/base/environment.h"
#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"

namespace gradwire {

std::string host_identity() {
  if (const auto named = environment("GRADWIRE_HOST")) return concat("named ", *named);
  std::string boot;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot);
  struct stat network {};
  if (boot.empty() || ::stat("/proc/self/ns/net", &network) != 0) {
    throw ResourceError(
        "cannot tell which host this is (no boot_id or no network namespace in /proc); give each host a name of its "
        "own in GRADWIRE_HOST, or name the backend");
  }
  return concat(boot, " ", network.st_ino);
}

}  // namespace gradwire
