// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/backend/job/meet_internal.h"

#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "gradwire/store/prefix_store.h"

namespace gradwire::internal {

Meeting meet(const MeetingOptions& options, const std::string& name, const std::vector<std::string>& next) {
  const Deadline deadline = Deadline::after(options.timeout);
  const std::string prefix = concat("gradwire/", name);
  MeetingOptions attempt = options;
  while (true) {
    Meeting meeting;
    meeting.place = find_meeting_place(attempt, process_environment());
    try {
      meeting.membership =
          std::make_unique<Membership>(std::make_shared<PrefixStore>(prefix, meeting.place.store), meeting.place.rank,
                                       meeting.place.world_size, deadline.remaining(), next);
      close_meeting_place(meeting.place, *meeting.membership->store(), deadline);
      if (meeting.place.may_reconnect) meeting.place.store->set_timeout(options.timeout);
      return meeting;
    } catch (const TimeoutError& late) {
      const std::string refused = meeting.place.refusals == nullptr ? "" : meeting.place.refusals->text();
      if (refused.empty()) throw;
      throw TimeoutError(concat(late.what(), refused), late.peers());
    } catch (const StoreError&) {
      // The client may have reached the server of a job of rank 0 that was just ending.
      if (!meeting.place.may_reconnect || deadline.expired()) throw;
      attempt.timeout = deadline.remaining();
    }
  }
}

}  // namespace gradwire::internal
