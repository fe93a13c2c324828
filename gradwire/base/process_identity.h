// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Names for processes, by which processes of the same host can see whether one still runs.
#pragma once

#include <string>

namespace gradwire {

// The name of this process: the running kernel, the namespace of process numbers, the number, when the process started,
// and a counter that tells ranks apart which are threads of one process. Two calls never return the same name.
// Thread-safe.
std::string process_identity();

// False when the process of that name has certainly ended; true when the process runs, or when that cannot be seen from
// here (another host, another namespace, no /proc, a name that makes no sense). Thread-safe; reads a file.
bool may_be_alive(const std::string& identity);

// What the names of all processes have in common whose ends the process of that name can see: those of one host and one
// namespace. Without white space; "unknown" where the process cannot see any.
std::string sight_of(const std::string& identity);

// The number of the process of that name, in its own namespace of process numbers; 0 for a name that makes no sense.
int number_of_process(const std::string& identity);

// "process 4711", for messages. Never throws for a name that makes no sense.
std::string describe_process(const std::string& identity);

}  // namespace gradwire
