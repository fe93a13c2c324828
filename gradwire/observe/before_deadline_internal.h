// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// A job that ended because a deadline passed, as it stood before.
#pragma once

#include <optional>
#include <vector>

#include "gradwire/observe/diagnosis.h"

namespace gradwire::observe {

// The tables as they were when the first rank gave up at its deadline: the calls that waited then are under way again,
// and the processes that waited in them have not ended. What these did later, they did because of the deadline. Nothing
// where no rank gave up so, or where all that did had calls that went well afterwards.
std::optional<std::vector<RankTable>> before_deadline(const std::vector<RankTable>& ranks);

}  // namespace gradwire::observe
