// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The source lines of addresses in programs.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "gradwire/base/deadline.h"
#include "gradwire/observe/flight_table.h"
#include "launch/captured_process.h"

namespace gradwire::launch {

// Finds the lines ("train.cc:41 (main)") of the calls' places, where addr2line (binutils) is installed and the program
// has debug information. Places in libtorch, whose debug information is large, stay as they are, and so do all that
// were not found at the deadline. Runs one process for each program and library, one after the other. For one thread.
class SourceLines final {
 public:
  // Begins. Does not wait, like all methods, but for a tenth of a second to end a program that looks lines up.
  SourceLines(std::vector<observe::RankTable> tables, Deadline deadline);
  SourceLines(const SourceLines&) = delete;
  SourceLines& operator=(const SourceLines&) = delete;

  // While the lookup has not ended: call go_on() once fd() is readable or the deadline has passed. The descriptor
  // changes with each call.
  int fd() const noexcept { return program_ ? program_->fd() : -1; }
  Deadline deadline() const noexcept { return deadline_; }
  void go_on();
  bool has_ended() const noexcept { return module_ == modules_.end(); }
  // Ends the lookup, and returns the tables with the lines that were found.
  std::vector<observe::RankTable> take() &&;

 private:
  using Modules = std::map<std::string, std::map<std::uint64_t, std::string>>;  // the lines of offsets in modules

  template <class Visit>
  void for_each_place(const Visit& visit);
  // Of module_, with what its process has written.
  void take_lines();
  void give_up();

  std::vector<observe::RankTable> tables_;
  const Deadline deadline_;
  Modules modules_;
  Modules::iterator module_;                // whose lines are looked up now; the end once the lookup has ended
  std::optional<CapturedProcess> program_;  // of module_; empty: not started yet
};

// The same for a caller that has nothing else to do: returns when the lookup has ended.
void add_source_lines(std::vector<observe::RankTable>& tables, Deadline deadline);

// Parses what `addr2line -a -i -f -C` prints: for each address a line with the address, and two lines for each function
// that was inlined there, the innermost first. Returns one text for each address: the innermost line that is not in a
// header of gradwire; empty where the line is not known. A pure function.
std::vector<std::string> lines_from_addr2line(const std::string& output);

}  // namespace gradwire::launch
