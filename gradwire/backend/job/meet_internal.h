// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The rendezvous of a job, from its options to the ranks that are all there.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "gradwire/backend/job/meeting_place_internal.h"
#include "gradwire/backend/job/membership_internal.h"

namespace gradwire::internal {

// Members go in the reverse order: the membership before the store that it lives in.
struct Meeting {
  MeetingPlace place;
  std::unique_ptr<Membership> membership;
};

// Finds the meeting place of `options` and waits there for all ranks; everything together takes `options.timeout` at
// most. `name` is the job's, for several jobs in one store. `next` is as for Membership. Throws as find_meeting_place()
// and Membership do.
Meeting meet(const MeetingOptions& options, const std::string& name, const std::vector<std::string>& next);

}  // namespace gradwire::internal
