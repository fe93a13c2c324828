// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The outcomes of faults, counted by class.
#pragma once

#include <array>
#include <map>
#include <ostream>
#include <string>
#include <vector>

#include "tests/chaos/member.h"

namespace gradwire::testing {

// The outcome of one fault.
struct Outcome {
  std::array<int, kComplaints> complaints{};
  std::vector<std::string> texts;    // of the complaints
  std::vector<double> milliseconds;  // from the fault until the call of each survivor threw
  bool well() const { return texts.empty(); }
  void complain(Complaint complaint, const std::string& text);
};

class Tally {
 public:
  void add(const Fault& fault, const Outcome& outcome);
  int faults() const { return faults_; }
  std::size_t classes() const { return rows_.size(); }
  // Returns a line for each class, and one for all classes: the number of faults, the number of faults with each
  // complaint, and the time until the survivors' calls threw.
  void print(std::ostream& out) const;

 private:
  struct Row {
    int faults = 0;
    std::array<int, kComplaints> complaints{};
    std::vector<double> milliseconds;
  };
  static void add_to(Row& row, const Outcome& outcome);
  static void print_row(std::ostream& out, const std::string& name, Row row);

  int faults_ = 0;
  std::map<std::string, Row> rows_;
  Row all_;
};

}  // namespace gradwire::testing
