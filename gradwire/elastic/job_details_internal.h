// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// In what a refused member differs from the members of the job.
#pragma once

#include <string>

#include "gradwire/store/store.h"

namespace gradwire::internal {

// Leaves `details`, a line for each thing that members must have in common, for members that are refused later. Only
// members that the job has admitted call it, so all write the same. Does nothing where the store fails: the details are
// for a message.
void leave_details(Store& store, const std::string& details) noexcept;

// The first line of `details` that is another one in the job, with the job's, for the end of a message; empty where the
// details of the job are not known, or are the same.
std::string first_difference(Store& store, const std::string& details) noexcept;

}  // namespace gradwire::internal
