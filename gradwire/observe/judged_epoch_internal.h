// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Which epoch of an elastic job a diagnosis goes by. Ranks go on after the failures of earlier epochs, so what they
// recorded there says nothing of the present trouble.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "gradwire/observe/flight_table.h"

namespace gradwire::observe {

// The last epoch of the rank whose end ended the job: the others may have begun another one since. Where no rank's end
// did, the newest epoch. 0: the rank took part in none. Nothing: the tables are those of no elastic job.
std::optional<std::int64_t> judged_epoch(const std::vector<RankTable>& ranks);

// The tables without the groups of other epochs, and without what ranks noted in these.
std::vector<RankTable> tables_of_epoch(const std::vector<RankTable>& ranks, std::int64_t epoch);

// Whether the rank has opened a group of the epoch.
bool takes_part(const RankTable& rank, std::int64_t epoch);

}  // namespace gradwire::observe
