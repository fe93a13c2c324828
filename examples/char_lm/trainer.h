// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The run: model, replica, optimizer, steps, and what is said about them.
#pragma once

#include <memory>

#include "examples/char_lm/options.h"
#include "examples/char_lm/text.h"
#include "gradwire/process_group/process_group.h"

namespace char_lm {

// Trains as `options` say and reports. Collective over `group`; every rank passes the same options and text. Throws
// UserError for what only shows now (a batch that the ranks do not divide, a checkpoint that does not fit), gradwire's
// errors when a rank fails.
void train(const Options& options, const Text& text, const std::shared_ptr<gradwire::ProcessGroup>& group);

}  // namespace char_lm
