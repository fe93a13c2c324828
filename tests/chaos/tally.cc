// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "tests/chaos/tally.h"

#include <algorithm>
#include <iomanip>

namespace gradwire::testing {
namespace {

constexpr int kNameWidth = 44;
constexpr int kCountWidth = 9;
constexpr int kTimeWidth = 10;

// The smallest of `sorted` that at least `share` of them do not exceed.
double quantile(const std::vector<double>& sorted, double share) {
  const double rank = share * static_cast<double>(sorted.size());
  auto index = static_cast<std::size_t>(rank);
  if (static_cast<double>(index) == rank && index > 0) --index;
  return sorted[std::min(index, sorted.size() - 1)];
}

}  // namespace

void Outcome::complain(Complaint complaint, const std::string& text) {
  ++complaints[static_cast<std::size_t>(complaint)];
  texts.push_back(text);
}

void Tally::add(const Fault& fault, const Outcome& outcome) {
  ++faults_;
  add_to(rows_[fault.what->name], outcome);
  add_to(all_, outcome);
}

void Tally::add_to(Row& row, const Outcome& outcome) {
  ++row.faults;
  for (std::size_t i = 0; i < row.complaints.size(); ++i) row.complaints[i] += outcome.complaints[i] > 0 ? 1 : 0;
  row.milliseconds.insert(row.milliseconds.end(), outcome.milliseconds.begin(), outcome.milliseconds.end());
}

void Tally::print(std::ostream& out) const {
  out << std::left << std::setw(kNameWidth) << "class" << std::right;
  for (const char* head : {"faults", "hangs", "wrong", "unnamed", "left"}) out << std::setw(kCountWidth) << head;
  for (const char* head : {"median ms", "99 % ms", "max ms"}) out << std::setw(kTimeWidth) << head;
  out << '\n';
  for (const auto& [name, row] : rows_) print_row(out, name, row);
  print_row(out, "all", all_);
}

void Tally::print_row(std::ostream& out, const std::string& name, Row row) {
  out << std::left << std::setw(kNameWidth) << name << std::right << std::setw(kCountWidth) << row.faults;
  for (const int count : row.complaints) out << std::setw(kCountWidth) << count;
  std::vector<double>& times = row.milliseconds;
  std::sort(times.begin(), times.end());
  for (const double share : {0.5, 0.99, 1.0}) {
    out << std::setw(kTimeWidth);
    if (times.empty()) {
      out << "-";
    } else {
      out << std::fixed << std::setprecision(1) << quantile(times, share);
    }
  }
  out << '\n';
}

}  // namespace gradwire::testing
