// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/elastic/job_details_internal.h"

#include <sstream>

#include "gradwire/base/error.h"
#include "gradwire/base/log.h"
#include "gradwire/base/strings.h"
#include "gradwire/membership/stored_values.h"

namespace gradwire::internal {
namespace {

const std::string kKey = "details";

std::string named(const std::string& line) { return line.empty() ? "nothing" : line; }

}  // namespace

void leave_details(Store& store, const std::string& details) noexcept {
  try {
    if (!membership::is_there(store, kKey)) store.set(kKey, details);
  } catch (const std::exception& problem) {
    log::debug(concat("an elastic job has no details for members that differ: ", describe(problem)));
  }
}

std::string first_difference(Store& store, const std::string& details) noexcept {
  try {
    const auto told = membership::value_of(store, kKey);
    if (!told) return "";
    std::istringstream here(details);
    std::istringstream in_the_job(*told);
    while (here || in_the_job) {
      std::string mine;
      std::string theirs;
      std::getline(here, mine);
      std::getline(in_the_job, theirs);
      if (mine != theirs)
        return concat("; the first difference: ", named(mine), " here, ", named(theirs), " in the job");
    }
  } catch (const std::exception& problem) {
    log::debug(concat("a member cannot tell in what it differs from its elastic job: ", describe(problem)));
  }
  return "";
}

}  // namespace gradwire::internal
