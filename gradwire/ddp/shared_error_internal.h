// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// One error for all ranks of a group.
#pragma once

#include <exception>
#include <string>

#include "gradwire/process_group/process_group.h"

namespace gradwire::internal {

// Tells the ranks of each other's errors; `mine` is null on a rank without one. Where a rank has one, throws that of
// the first such rank on every rank: of the same kind, with the text "`operation` failed on rank 2: ...". An exception
// that is none of gradwire's becomes an Error. Collective; the group stays usable.
void throw_first_error(ProcessGroup& group, const std::exception_ptr& mine, const std::string& operation);

}  // namespace gradwire::internal
