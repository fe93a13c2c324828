// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Finds the receive that waits for another tag than the one with which its partner has sent.
#pragma once

#include <string>
#include <vector>

#include "gradwire/observe/group_view_internal.h"

namespace gradwire::observe {

// "rank 1 sent to rank 0 with tag 4; rank 0 waits for tag 3", in the numbers of the job. Empty where no receive in what
// was `found` waits so, where the partner may still send, and where the tables have forgotten calls that might have
// taken the message.
std::string sent_with_other_tag(const std::vector<GroupView>& groups, const Diagnosis& found);

}  // namespace gradwire::observe
