// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/process_group/closable.h"

#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"

namespace gradwire::internal {

void require_open_group(const ProcessGroup& group, const char* owner, const char* advice) {
  if (is_open(group)) return;
  throw InvalidArgument(concat("The process group of this ", owner, " was shut down on rank ", group.rank(),
                               " (destroy_process_group()); make a new group, and ", advice, " over it."));
}

}  // namespace gradwire::internal
