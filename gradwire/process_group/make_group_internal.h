// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// make_process_group() as one step of a longer call.
#pragma once

#include <algorithm>
#include <memory>
#include <optional>
#include <string>

#include "gradwire/base/deadline.h"
#include "gradwire/process_group/process_group.h"
#include "gradwire/store/store.h"

namespace gradwire::internal {

// As make_process_group(), by `deadline` with all its steps. The group's timeout is `timeout`. `is_registered`: this
// rank has said who it is in all first_places() of `store`.
std::shared_ptr<ProcessGroup> make_group_by(Deadline deadline, const std::string& backend, std::shared_ptr<Store> store,
                                            int rank, int size, Milliseconds timeout,
                                            const std::optional<at::Device>& device_id = std::nullopt,
                                            bool is_registered = false);

// The timeout of a step that ends by `deadline`: positive, so that a step which is late fails with its own words.
inline Milliseconds timeout_until(Deadline deadline) { return std::max(deadline.remaining(), Milliseconds(1)); }

}  // namespace gradwire::internal
