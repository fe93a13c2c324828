// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// From what a user asks for to what the Reducer does.
#pragma once

#include <torch/nn/module.h>

#include <string>
#include <vector>

#include "gradwire/ddp/ddp_options.h"
#include "gradwire/ddp/reducer_internal.h"
#include "gradwire/ddp/replica_sync_internal.h"

namespace gradwire::internal {

// How many lanes DDP takes where none are asked for: two where buckets cross a network, so that one is on its way while
// another is compressed or waits for an answer; one elsewhere, where lanes compete for the same cores.
int automatic_lanes(const ProcessGroup& group);

// Throws InvalidArgument for an option out of range.
ReducerOptions reducer_options(const DdpOptions& options);

// Throws InvalidArgument when an option names what `module` does not have.
void require_names(const torch::nn::Module& module, const DdpOptions& options);

// What ranks compare.
std::vector<NamedSetting> settings_of(const DdpOptions& options, const ReducerOptions& tuned);

bool contains(const std::vector<std::string>& names, const std::string& name);

}  // namespace gradwire::internal
