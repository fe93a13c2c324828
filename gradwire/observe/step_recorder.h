// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The step recorder: what each training step of this process did, seen through the trace points.
//
// With GRADWIRE_RECORD=DIR (gradwire-run --record DIR) the first group of the process begins the recording, and all
// goes into the file DIR/rank-K.record (docs/format/recorder.md), which `python -m gradwire.report DIR` shows. The file
// has a fixed size. A process that is killed leaves in the file what had ended before. Where the file cannot be made,
// one warning says why, and the program goes on.
//
// A step begins with the first forward pass through DDP (gradwire's, or in Python also PyTorch's over the backend
// gradwire of torch.distributed) after a synchronized backward pass, and ends where the next step begins. A program may
// set these limits itself, with begin_step() and end_step(). Programs without DDP have steps where they set them. An
// iteration that failed and is done again is one step.
//
// The recorder is the sink of the trace points; another sink takes its place. It belongs to one rank: programs that run
// ranks as threads mix their steps. In a forked child nothing is recorded.
#pragma once

#include <string>

#include "gradwire/observe/step_times.h"

namespace gradwire::observe {

// Begins to record into a file where GRADWIRE_RECORD names a folder; else, and from the second call on, does nothing.
// RANK and WORLD_SIZE of the environment name the rank; without them, `rank` and `world` do. Thread-safe.
void record_from_environment(int rank, int world) noexcept;

// Removes the file of the rank in `folder` that an earlier run has left, if there is one. A file into which another
// process writes stays. Thread-safe.
void remove_earlier_record(const std::string& folder, int rank);

// Begins to record in memory, for last_step() and step_totals(), if nothing is recorded yet. Thread-safe.
void record_steps() noexcept;

// Takes the recorder away from the trace points, where it then costs nothing, or puts it back. Without a recorder this
// function does nothing. What is under way at that moment is recorded in part. Thread-safe.
void set_recording(bool on) noexcept;

// This thread, which trains, begins a step here and not with the forward pass. Without a recorder, this function and
// the next two do nothing. Call all three on the thread that trains.
void begin_step() noexcept;
// The step ends here. What follows belongs to no step until the next one begins.
void end_step() noexcept;
// Tells the loss of the step under way, or else of the last step, for the report and the live view. A loss that is not
// finite is shown as such.
void tell_loss(double loss) noexcept;

// The last step that has ended; an empty one before. Call it on the thread that trains.
StepTimes last_step();
// The sums of all steps that have ended. Call it on the thread that trains.
StepTotals step_totals();

}  // namespace gradwire::observe
