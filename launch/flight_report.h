// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// What the launcher tells of the calls of its ranks.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "gradwire/observe/diagnosis.h"
#include "gradwire/observe/flight_table.h"
#include "launch/present_epoch.h"

namespace gradwire::launch {

// What this host's ranks have recorded at one moment, and what is told with it. Texts consist of lines of
// "gradwire-run: ...".
struct FlightRecords {
  std::vector<observe::RankTable> tables = {};   // of all ranks of this host; empty for programs that make no calls
  std::vector<observe::RankTable> earlier = {};  // of the processes of an elastic job that were replaced
  observe::Occasion occasion = {};
  std::optional<PresentEpoch> epoch = {};  // of an elastic job that stands still: what is judged
  std::string errors = {};                 // told before the explanation, also where there is none
  std::string headline = {};               // told before an explanation only
  std::string quoted = {};                 // the user reads this besides: an error in it is not told again
  bool is_told = true;                     // false: the records are only written
};

// Writes the records to `folder`; empty: does not. Returns what to tell of them; empty where nothing is wrong. `world`
// is the number of ranks of the job.
std::string tell(const FlightRecords& records, const std::string& folder, int world);

}  // namespace gradwire::launch
