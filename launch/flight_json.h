// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Tables of flight recorders as JSON lines. docs/format/flight_recorder.md specifies the lines.
#pragma once

#include <string>
#include <vector>

#include "gradwire/observe/diagnosis.h"
#include "gradwire/observe/flight_table.h"

namespace gradwire::launch {

// The version of the lines.
inline constexpr int kFlightLines = 1;

// The lines of one rank, each with a newline.
std::string flight_lines(const observe::RankTable& table);
// The inverse. Throws LaunchError, which names `source` and the line, when the text is something else.
observe::RankTable read_flight_lines(const std::string& text, const std::string& source);

// The diagnosis as one JSON object, without a newline.
std::string diagnosis_line(const observe::Diagnosis& diagnosis);

// Writes `folder`/rank-K.jsonl for each table, and makes the folder where it is missing. Of processes that were
// replaced by others of the same rank, `earlier` holds the tables, which are written as
// `folder`/earlier-rank-K-pid-PID.jsonl. A file is replaced as a whole. Throws LaunchError.
void write_flight_folder(const std::string& folder, const std::vector<observe::RankTable>& tables,
                         const std::vector<observe::RankTable>& earlier = {});
// Reads all rank-*.jsonl of a folder, and all files of GRADWIRE_FLIGHT_RECORDER in it. `left_out` gets a sentence for
// each rank-*.jsonl that is empty, or has a line that is cut off or is none of a record. Throws LaunchError when there
// is none that is.
std::vector<observe::RankTable> read_flight_folder(const std::string& folder, std::vector<std::string>& left_out);

}  // namespace gradwire::launch
