// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// What a launcher reads from the store before it decides.
#pragma once

#include "launch/judgement.h"
#include "launch/node_coordinator_options.h"
#include "launch/node_store.h"

namespace gradwire::launch {

// Reads the records that count in the phase of `position` into the fields of `heard` for that phase. Throws as
// NodeStore does, and LaunchError where the store holds what is no record; `heard` has then what was read before.
void hear_store(const NodeCoordinatorOptions& options, const Position& position, NodeStore& store, Heard& heard);

}  // namespace gradwire::launch
