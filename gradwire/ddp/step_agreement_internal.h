// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The end of a step on devices.
#pragma once

#include <functional>

#include "gradwire/process_group/process_group.h"

namespace gradwire::internal {

// Returns when the devices of all ranks have ended their part of the step. An engine of a device does not block the
// CPU, and after an abort its work on the device ends as if all was well; so the ranks tell each other by messages of
// the CPU: each rank tells rank 0, and rank 0 tells the others. A rank that fails aborts `control`, which ends the wait
// of the other ranks at once, also while their own devices wait for that rank.
//
// Collective. `ended` returns whether this rank's devices have ended their part, and throws when one of them failed;
// it is called again and again. Throws what `ended` throws, the error of another rank (PeerError), TimeoutError when
// this rank's devices have not ended after control.timeout(), and AbortedError when the thread is interrupted
// (gradwire/base/interrupt.h). A `control` without messages compares by an all_gather, which sees errors of other ranks
// only after this rank's devices have ended.
void end_step_together(ProcessGroup& control, const std::function<bool()>& ended);

}  // namespace gradwire::internal
