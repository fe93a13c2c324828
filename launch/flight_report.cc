// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "launch/flight_report.h"

#include <sstream>

#include "gradwire/base/strings.h"
#include "launch/flight_json.h"
#include "launch/launch_error.h"

namespace gradwire::launch {
namespace {

std::string with_prefix(const std::string& text) {
  std::istringstream lines(text);
  std::string prefixed;
  for (std::string line; std::getline(lines, line);) prefixed += concat("gradwire-run: ", line, "\n");
  return prefixed;
}

// Returns a line that says where the records are.
std::string write(const FlightRecords& records, const std::string& folder) {
  if (folder.empty()) return "";
  try {
    write_flight_folder(folder, records.tables, records.earlier);
    return concat("  the last calls of each rank are in ", folder, "\n");
  } catch (const LaunchError& error) {
    return concat("  ", error.what(), "\n");
  }
}

// Empty where nothing is wrong.
std::string explain(const FlightRecords& records, const std::string& written, int world) {
  observe::Diagnosis found =
      observe::diagnose(records.epoch ? tables_of(*records.epoch, records.tables) : records.tables, records.occasion);
  if (records.quoted.find(found.words) != std::string::npos) found.words.clear();
  if (found.fault == observe::FaultClass::none) return "";
  if (found.fault == observe::FaultClass::unknown && static_cast<int>(records.tables.size()) < world) {
    return with_prefix(concat("the calls of this host's ranks do not show the cause: run gradwire-diagnose over the ",
                              "files that --flight-dir writes on all hosts\n", written));
  }
  return with_prefix(observe::explain(found, records.tables, records.occasion) + written);
}

}  // namespace

std::string tell(const FlightRecords& records, const std::string& folder, int world) {
  if (records.tables.empty()) return records.errors;
  const std::string written = write(records, folder);
  if (!records.is_told) return "";
  const std::string explanation = explain(records, written, world);
  return concat(records.errors, explanation.empty() ? "" : records.headline, explanation);
}

}  // namespace gradwire::launch
