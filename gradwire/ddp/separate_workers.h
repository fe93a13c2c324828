// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Workers that train separately, exchange from time to time, and may be other ones at the next exchange
// (gradwire/elastic).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "gradwire/process_group/process_group.h"

namespace gradwire {

// One worker's side (DilocoAverager). A worker has parameters of its own, and ends steps by itself; the exchanges begin
// at the same numbers of steps on all workers. The first leave_group() makes the object one of an elastic job.
//
// One thread calls, between steps. Only meet(), resume() and settle() communicate, over exchange_group(); they throw
// what the group throws.
class SeparateWorkers {
 public:
  virtual ~SeparateWorkers() = default;

  // The group over whose ranks the workers exchange.
  virtual std::shared_ptr<ProcessGroup> exchange_group() const = 0;
  // Text that is equal on workers that can exchange with each other.
  virtual std::string exchange_identity() const = 0;
  // The number of steps that this worker has ended. A step whose exchange failed has ended too: resume() does what is
  // left of the step.
  virtual std::int64_t steps_ended() const = 0;

  // Workers do not meet at each step, so they agree on a boundary in another way. Whether a worker that has ended
  // `step` steps looks for the wish to stop: before a step that begins an exchange, and at each boundary.
  virtual bool looks_before(std::int64_t step) const = 0;
  // The first number of ended steps that no worker can pass before this worker, which has ended `step` steps, has begun
  // another exchange.
  virtual std::int64_t boundary_after(std::int64_t step) const = 0;

  // The group is about to change. Waits until the exchanges under way have ended, well or not: the group has been
  // aborted, or all workers have begun the same exchanges. May be called again.
  virtual void leave_group() = 0;
  // What the workers of a new group found out.
  struct Meeting {
    int donor = -1;              // the rank that gave its state; -1: no worker holds the state
    std::vector<int> receivers;  // the ranks that take the donor's state over, in ascending order
  };
  // Collective over the new group: the workers agree on their outer state, and receivers get that of the donor.
  // `holds`: this worker holds the state of the job. `fresh`: no step has begun, so where nobody holds state that of
  // rank 0 is the job's. A worker that has the average of an exchange that will be done again gives it up here; nothing
  // else changes before apply_meeting(). Throws MismatchError on all workers when they hold different outer parameters.
  virtual Meeting meet(bool holds, bool fresh) = 0;
  // Changes this worker as meet() found out: all workers come to hold the same outer state, and a receiver has ended as
  // many steps as the donor. Does not communicate, so whatever else a receiver needs can arrive before. Once after a
  // meet() with a donor; leave_group() forgets the meeting.
  virtual void apply_meeting() = 0;
  // Goes on in the new group, after apply_meeting(): begins the exchanges that were broken off once more, and does what
  // is left of the last step. Collective where an exchange is waited for. After an error: leave_group(), and so on.
  virtual void resume() = 0;
  // Waits until the exchanges under way have ended. Throws their errors.
  virtual void settle() = 0;
};

// An optimizer that may end each of its steps with SeparateWorkers (PostLocalSGDOptimizer).
class SeparateOptimizer {
 public:
  virtual ~SeparateOptimizer() = default;
  // The object, which this optimizer keeps; null for an optimizer whose ranks train in another way.
  virtual SeparateWorkers* separate_workers() = 0;
  // What all workers have in common besides: the options, such as learning rates, as bytes.
  virtual std::string save_options() const = 0;
  // Takes over bytes of save_options() of another worker. The optimizer remembers nothing from before.
  virtual void load_options(const std::string& bytes) = 0;
};

}  // namespace gradwire
