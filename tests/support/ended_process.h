// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sstream>
#include <string>

#include "gradwire/base/process_identity.h"

namespace gradwire::test_support {

// The name of a process that had this one's number before, and has ended: may_be_alive() is false for it.
inline std::string ended_process() {
  std::istringstream in(process_identity());
  std::string space;
  std::string pid;
  in >> space >> pid;
  return space + " " + pid + " 1 0";
}

}  // namespace gradwire::test_support
