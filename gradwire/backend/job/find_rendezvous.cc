// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/backend/job/find_rendezvous.h"

#include "gradwire/backend/job/meet_internal.h"
#include "gradwire/backend/job/meeting_place_internal.h"
#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "gradwire/store/prefix_store.h"

namespace gradwire {

Rendezvous find_rendezvous(const RendezvousOptions& options) {
  if (options.timeout.count() <= 0)
    throw InvalidArgument(
        concat("find_rendezvous: a timeout of ", options.timeout.count(), " ms; give a positive one"));
  const internal::MeetingOptions asked{.method = options.method,
                                       .store = nullptr,
                                       .rank = options.rank,
                                       .world_size = options.world_size,
                                       .timeout = options.timeout,
                                       .caller = "find_rendezvous",
                                       .options_name = "RendezvousOptions"};
  const internal::MeetingPlace place = internal::find_meeting_place(asked, internal::process_environment());
  if (place.private_file.empty()) return {place.store, place.rank, place.world_size};
  // The name of a private file may go only when all ranks have the file open.
  const auto meeting = std::make_shared<internal::Meeting>(internal::meet(asked, "rendezvous", /*next=*/{}));
  const std::shared_ptr<Store> generation(meeting, meeting->membership->store().get());
  return {std::make_shared<PrefixStore>("program", generation), place.rank, place.world_size};
}

}  // namespace gradwire
