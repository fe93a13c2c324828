// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Backends that a program adds: its own groups, by name.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "gradwire/process_group/process_group.h"
#include "gradwire/store/store.h"

namespace gradwire {

// Makes the group of one rank, on the thread of that rank that asks for the group. All ranks of the group reach
// `store`, whose keys are this group's alone. Returns a group with that rank and size; may throw what
// init_process_group() may.
using GroupFactory = std::function<std::shared_ptr<ProcessGroup>(std::shared_ptr<Store> store, int rank, int size,
                                                                 Milliseconds timeout)>;

// Makes `name` a backend of init_process_group(), new_group() and make_process_group() in this process: groups of that
// backend come from `factory`. A name that was registered before gets the new factory. Each rank registers the name.
//
// Throws InvalidArgument for a null factory, an empty name, a name with capital letters, and the name of a backend of
// gradwire's. Thread-safe.
void register_backend(const std::string& name, GroupFactory factory);

}  // namespace gradwire
