// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The user's options: checked, and translated for the Reducer.
#pragma once

#include <torch/nn/module.h>

#include <string>
#include <vector>

#include "gradwire/ddp/ddp_options.h"
#include "gradwire/ddp/reducer_internal.h"
#include "gradwire/ddp/replica_sync_internal.h"

namespace gradwire::internal {

// The number of lanes when the options give none. Two over a group of several hosts: one bucket can cross the network
// while another one is compressed, or waits for an answer. One elsewhere: there, lanes compete for the same cores.
int automatic_lanes(const ProcessGroup& group);

// Whether the bits of an all-reduced sum do not depend on which other elements are summed with it: every engine that
// `group` uses combines the ranks in one order, whatever the place of an element in its buffer. False for a
// group whose ranks change. The same on all ranks.
bool sums_in_one_order(const ProcessGroup& group);

// Whether any of `parameters` is on a device that the engine of `group` itself uses. Hooks then run on the thread of
// the backward pass, whatever the option `lanes` says: calls on a device are one sequence (docs/decisions/0028).
// Engines that move memory of the host have no such rule.
bool needs_one_thread(const std::vector<NamedTensor>& parameters, const ProcessGroup& group);

// Translates the options. Throws InvalidArgument for an option out of range.
ReducerOptions reducer_options(const DdpOptions& options);

// Throws InvalidArgument when an option names a parameter or buffer that `module` does not have.
void require_names(const torch::nn::Module& module, const DdpOptions& options);

// The settings that the ranks compare. `place` is the kind of device that the parameters are on.
std::vector<NamedSetting> settings_of(const DdpOptions& options, const ReducerOptions& tuned, c10::DeviceType place);

}  // namespace gradwire::internal
