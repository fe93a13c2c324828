// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The source lines of addresses in programs.
#pragma once

#include <string>
#include <vector>

#include "gradwire/base/deadline.h"
#include "gradwire/observe/flight_table.h"

namespace gradwire::launch {

// Fills in the lines ("train.cc:41 (main)") of the calls' places, where addr2line (binutils) is installed and the
// program has debug information. Places in libtorch, whose debug information is large, stay as they are, and so do all
// that were not found at the deadline. Starts one process for each program and library.
void add_source_lines(std::vector<observe::RankTable>& tables, Deadline deadline);

// Parses what `addr2line -a -i -f -C` prints: for each address a line with the address, and two lines for each function
// that was inlined there, the innermost first. Returns one text for each address: the innermost line that is not in a
// header of gradwire; empty where the line is not known. A pure function.
std::vector<std::string> lines_from_addr2line(const std::string& output);

}  // namespace gradwire::launch
