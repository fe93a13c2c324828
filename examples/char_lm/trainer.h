// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The training run: model, replica, optimizer, steps, and the report.
#pragma once

#include <memory>

#include "examples/char_lm/options.h"
#include "examples/char_lm/text.h"
#include "gradwire/process_group/process_group.h"

namespace char_lm {

// Trains with `options`, and reports. Collective over `group`; every rank passes the same options and text. Throws
// UserError for mistakes that parse_options() cannot detect (a batch that is no multiple of the number of ranks, a
// checkpoint that does not fit), and gradwire's errors when a rank fails.
void train(const Options& options, const Text& text, const std::shared_ptr<gradwire::ProcessGroup>& group);

}  // namespace char_lm
