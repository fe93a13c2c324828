// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The backends that register_backend() has added. All functions may be called from any thread.
#pragma once

#include <string>
#include <vector>

#include "gradwire/process_group/user_backends.h"

namespace gradwire::internal {

// As register_backend(), for a name that is none of gradwire's.
void add_user_backend(const std::string& name, GroupFactory factory);

std::vector<std::string> user_backend_names();

// The factory of `name`; null where nobody added that name.
GroupFactory user_backend(const std::string& name);

// The group that `factory`, that of the backend `name`, makes. Throws InvalidArgument where it makes none, or one of
// another rank or size.
std::shared_ptr<ProcessGroup> make_user_group(const std::string& name, const GroupFactory& factory,
                                              std::shared_ptr<Store> store, int rank, int size, Milliseconds timeout);

}  // namespace gradwire::internal
