// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "launch/pipe.h"

#include <fcntl.h>
#include <unistd.h>

#include "gradwire/base/strings.h"
#include "launch/launch_error.h"

namespace gradwire::launch {

Pipe make_pipe(const std::string& what_for) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw_errno(concat("cannot make a pipe ", what_for));
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

}  // namespace gradwire::launch
