// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The messages between the thread that serves a host of an elastic job, and the rest of its launcher.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "gradwire/base/deadline.h"
#include "gradwire/base/mutex.h"
#include "gradwire/membership/job_course.h"
#include "gradwire/membership/records.h"

namespace gradwire::launch {

// Thread-safe. The launcher asks and sends its orders; the serving thread, of which there is one, takes the orders,
// does a round of work and reports what the round has found.
class HostMailbox final {
 public:
  // For the launcher. As the methods of JoinedHost with these names.
  bool answers();
  std::optional<membership::Epoch> epoch(std::int64_t number);
  membership::JobCourse course();
  void on_death();
  void gives_up();
  // The thread is to end.
  void stop();
  // Why the ranks have to stop; empty while they have not to.
  std::string reason();
  // Whether gives_up() was called.
  bool has_given_up();

  // For the serving thread. What its next round has to do.
  struct Orders {
    bool asks = false;              // somebody waits in answers()
    bool has_death = false;         // on_death() was called since the round before
    bool gives_up = false;          // gives_up() was called
    std::int64_t wanted_epoch = 0;  // by epoch(), which does not know it yet; 0: none
    std::int64_t questions = 0;     // how many calls of answers() have begun
  };
  // Nothing once the thread is to end: after stop(), and after a round that has told why the ranks have to stop.
  std::optional<Orders> take_orders();

  // What a round has found.
  struct Findings {
    bool has_talked = false;  // to the job's store, or has tried to
    bool has_failed = false;  // the talk, or the look for the dead: these deaths are to be looked for again
    std::optional<membership::Epoch> epoch = {};  // Orders::wanted_epoch, where it is known now
    membership::JobCourse course = {};            // the newest
    std::string reason = {};                      // why the ranks have to stop; empty: they need not
  };
  // The round with `orders` has ended.
  void report(const Orders& orders, Findings findings);
  // Waits for `time`; shorter where something has come since `orders` were taken, or comes.
  void wait(const Orders& orders, Milliseconds time);

 private:
  bool is_over() const GRADWIRE_REQUIRES(mutex_) { return stop_ || !reason_.empty(); }

  Mutex mutex_;
  ConditionVariable changed_;
  bool stop_ GRADWIRE_GUARDED_BY(mutex_) = false;
  std::string reason_ GRADWIRE_GUARDED_BY(mutex_);
  bool has_death_ GRADWIRE_GUARDED_BY(mutex_) = false;
  bool gives_up_ GRADWIRE_GUARDED_BY(mutex_) = false;
  std::int64_t asked_ GRADWIRE_GUARDED_BY(mutex_) = 0;     // how many calls of answers() have begun
  std::int64_t answered_ GRADWIRE_GUARDED_BY(mutex_) = 0;  // how many of them the newest talk to the store answers
  bool talked_well_ GRADWIRE_GUARDED_BY(mutex_) = false;   // that talk
  std::int64_t wanted_epoch_ GRADWIRE_GUARDED_BY(mutex_) = 0;
  std::optional<membership::Epoch> known_epoch_ GRADWIRE_GUARDED_BY(mutex_);
  membership::JobCourse course_ GRADWIRE_GUARDED_BY(mutex_);
};

}  // namespace gradwire::launch
