// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/observe/step_recorder.h"

#include <pthread.h>

#include <atomic>
#include <cstdlib>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "gradwire/base/environment.h"
#include "gradwire/base/mutex.h"
#include "gradwire/base/notice.h"
#include "gradwire/base/strings.h"
#include "gradwire/base/trace.h"
#include "gradwire/observe/clock_internal.h"
#include "gradwire/observe/flight_memory_internal.h"
#include "gradwire/observe/record_file_internal.h"

namespace gradwire::observe {
namespace {

using record_format::ChoiceKind;
using record_format::Phase;

// A shorter wait, in nanoseconds, is one for a call that had ended.
constexpr std::int64_t kShortestWait = 1000;
constexpr std::size_t kMostParts = 1 << 16;  // of one kind in a step or in a bucket that are kept

std::int64_t monotonic_now() noexcept { return time_of(CLOCK_MONOTONIC); }

// A reduction that this thread has begun and that others may end.
struct Running {
  std::uint64_t step = 0;
  std::size_t position = 0;  // in the step's buckets
};

// Counts set_recording(): a thread that was within a call then has missed the end of the call.
std::atomic<std::uint64_t> interruptions{0};

// What this thread does.
struct ThreadState {
  std::uint64_t interruptions = 0;  // as far as this thread has seen them
  std::optional<Running> bucket;
  int calls = 0;      // a group may call another
  int waits = 0;      // a Work may wait for another
  bool open = false;  // `call` holds the outermost call
  CallTimes call;
  std::int64_t wait_begin = 0;
};
thread_local ThreadState here;

// The recorder of the process.
class Recorder {
 public:
  static void on_event(void*, const trace::Event& event) noexcept;

  // Writes into `file` from now on.
  void write_to(std::unique_ptr<RecordFile> file) {
    MutexLock lock(mutex_);
    if (file_ == nullptr) file_ = std::move(file);
  }
  void begin_step() noexcept {
    MutexLock lock(mutex_);
    begin(monotonic_now(), true);
  }
  void end_step() noexcept {
    MutexLock lock(mutex_);
    end(monotonic_now());
  }
  void tell_loss(double loss) noexcept {
    MutexLock lock(mutex_);
    (is_open_ ? step_ : last_).loss = loss;
    if (file_) file_->add_loss(loss, is_open_ ? step_.number : last_.number, is_open_, monotonic_now());
  }
  // The process ends, and no step follows that would end the last one.
  void end_last_step() noexcept {
    MutexLock lock(mutex_);
    if (!is_open_ || step_.wait.end == 0) return;
    const std::int64_t time = step_.wait.end;
    // What came after the step, such as a barrier while another rank saved a checkpoint, is no part of it.
    std::erase_if(step_.calls, [time](const CallTimes& call) { return call.span.end > time; });
    std::erase_if(step_.waits, [time](const Span& wait) { return wait.end > time; });
    std::erase_if(step_.buckets, [time](const BucketTimes& bucket) { return bucket.ready > time; });
    end(time);
  }
  StepTimes last_step() {
    MutexLock lock(mutex_);
    return last_;
  }
  StepTotals totals() {
    MutexLock lock(mutex_);
    return totals_;
  }

 private:
  void begin(std::int64_t time, bool by_program) noexcept GRADWIRE_REQUIRES(mutex_);
  void end(std::int64_t time) noexcept GRADWIRE_REQUIRES(mutex_);
  void enter(Phase phase, std::int64_t time) noexcept GRADWIRE_REQUIRES(mutex_);
  void on_ddp(std::string_view point, const trace::Event& event) GRADWIRE_EXCLUDES(mutex_);
  void on_bucket(std::string_view point, const trace::Event& event) GRADWIRE_EXCLUDES(mutex_);
  void on_call(bool begins, const trace::Event& event) GRADWIRE_EXCLUDES(mutex_);
  void on_wait(bool begins) GRADWIRE_EXCLUDES(mutex_);
  void on_choice(std::string_view point, const trace::Event& event) GRADWIRE_EXCLUDES(mutex_);
  BucketTimes* running() GRADWIRE_REQUIRES(mutex_);
  BucketTimes* unfinished(const trace::Event& event) GRADWIRE_REQUIRES(mutex_);

  // A step that does not end, as after the last one, must not take more and more memory.
  template <class Part>
  void keep(std::vector<Part>& parts, const Part& part) GRADWIRE_REQUIRES(mutex_) {
    if (parts.size() < kMostParts) {
      parts.push_back(part);
    } else if (file_) {
      file_->count_lost();
    }
  }

  void count_lost() noexcept GRADWIRE_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    if (file_) file_->count_lost();
  }

  Mutex mutex_;
  std::unique_ptr<RecordFile> file_ GRADWIRE_GUARDED_BY(mutex_);  // null: in memory only
  bool is_open_ GRADWIRE_GUARDED_BY(mutex_) = false;              // a step is under way
  bool by_program_ GRADWIRE_GUARDED_BY(mutex_) = false;           // begin_step() began it
  Phase phase_ GRADWIRE_GUARDED_BY(mutex_) = Phase::none;
  std::uint64_t trains_ GRADWIRE_GUARDED_BY(mutex_) = 0;  // the thread of the steps
  std::uint64_t steps_ GRADWIRE_GUARDED_BY(mutex_) = 0;   // that have begun
  StepTimes step_ GRADWIRE_GUARDED_BY(mutex_);
  StepTimes last_ GRADWIRE_GUARDED_BY(mutex_);
  StepTotals totals_ GRADWIRE_GUARDED_BY(mutex_);
};

void Recorder::enter(Phase phase, std::int64_t time) noexcept {
  phase_ = phase;
  if (file_) file_->enter(phase, step_.number, time);
}

void Recorder::begin(std::int64_t time, bool by_program) noexcept {
  if (is_open_) end(time);
  step_.number = steps_++;
  step_.whole.begin = time;
  is_open_ = true;
  by_program_ = by_program;
  trains_ = own_thread();
  enter(Phase::rest, time);
}

void Recorder::end(std::int64_t time) noexcept {
  if (!is_open_) return;
  is_open_ = false;
  StepTimes& step = step_;
  step.whole.end = time;
  if (step.forward.begin != 0 && step.backward.begin == 0) step.forward.end = time;
  if (step.backward.begin != 0 && step.backward.end == 0) step.backward.end = time;
  if (step.wait.begin != 0 && step.wait.end == 0) step.wait.end = time;
  if (step.rest.begin != 0) step.rest.end = time;
  try {
    StepTotals own;
    add_step(own, step);
    add_step(totals_, step);
    if (file_) file_->add(step, own, trains_);
  } catch (const std::exception&) {
    if (file_) file_->count_lost();  // no memory
  }
  last_ = std::exchange(step_, StepTimes{});
  enter(Phase::none, time);
}

void Recorder::on_ddp(std::string_view point, const trace::Event& event) {
  const std::int64_t time = monotonic_now();
  MutexLock lock(mutex_);
  if (point == "forward") {
    // The first forward after a synchronized backward pass begins a step, unless the program says where steps begin.
    const bool fresh = step_.forward.begin == 0;
    if (!is_open_ || (!fresh && !by_program_ && phase_ == Phase::rest)) begin(time, false);
    if (step_.forward.begin == 0) step_.forward.begin = time;
    enter(Phase::forward, time);
    return;
  }
  if (!is_open_) return;
  const bool has_waited = step_.wait.end != 0;
  if (point == "backward" && has_waited) {
    // A further pass, or the next part of one of which a part had ended by itself, as a re-entrant checkpoint's.
    step_.backward.end = step_.rest.begin = 0;
    enter(Phase::backward, time);
  } else if (point == "backward" && step_.backward.begin == 0) {
    // begin_step() may lie between the forward and the backward pass.
    if (step_.forward.begin != 0) step_.forward.end = time;
    step_.backward.begin = time;
    enter(Phase::backward, time);
  } else if (point == "wait" && step_.backward.begin != 0 && (has_waited || step_.wait.begin == 0)) {
    if (has_waited) {
      keep(step_.earlier_waits, step_.wait);
      if (file_) file_->add_earlier_wait(step_.wait, step_.number, own_thread());
      step_.backward.end = step_.rest.begin = 0;
    }
    step_.wait = {time, 0};
    enter(Phase::wait, time);
  } else if (point == "finished" && step_.wait.begin != 0 && !has_waited) {
    step_.wait.end = step_.backward.end = step_.rest.begin = time;
    enter(Phase::rest, time);
  } else if (point == "launch") {
    BucketTimes bucket;
    bucket.ddp = event.details.kind;
    bucket.index = event.sequence;
    bucket.bytes = event.details.bytes;
    bucket.ready = time;
    keep(step_.buckets, bucket);
  }
}

// The last bucket of the event's number and DistributedDataParallel that has not ended.
BucketTimes* Recorder::unfinished(const trace::Event& event) {
  for (std::size_t i = step_.buckets.size(); i > 0; --i) {
    BucketTimes& bucket = step_.buckets[i - 1];
    const bool is_it = bucket.index == event.sequence && bucket.ddp == event.details.kind;
    if (is_it && bucket.run.end == 0) return &bucket;
  }
  return nullptr;
}

BucketTimes* Recorder::running() {
  if (!here.bucket || here.bucket->step != step_.number || here.bucket->position >= step_.buckets.size())
    return nullptr;
  return &step_.buckets[here.bucket->position];
}

void Recorder::on_bucket(std::string_view point, const trace::Event& event) {
  const std::int64_t time = monotonic_now();
  MutexLock lock(mutex_);
  BucketTimes* const bucket = unfinished(event);
  if (bucket == nullptr) return;
  if (point != "begin" && bucket->run.begin == 0) return;  // it began while nothing was recorded
  if (point == "begin") {
    bucket->run.begin = time;
    bucket->lane = event.details.lane;
    if (event.details.word != nullptr) bucket->hook = event.details.word;
    here.bucket = Running{step_.number, static_cast<std::size_t>(bucket - step_.buckets.data())};
  } else if (point == "return") {
    bucket->returned = time;
    bucket->sent = event.details.sent;
    here.bucket.reset();
  } else if (point == "end") {
    bucket->run.end = time;
    if (file_) file_->add(*bucket, step_.number, own_thread());
  }
}

// Calls of threads other than that of the steps and the lanes are recorded, but are no part of a step.
void Recorder::on_call(bool begins, const trace::Event& event) {
  if (begins) {
    if (here.calls++ != 0) return;
    here.call = {
        static_cast<CallKind>(event.details.kind), event.details.bytes, event.details.sent, {monotonic_now(), 0}};
    here.open = true;
    return;
  }
  if (here.calls == 0 || --here.calls != 0 || !std::exchange(here.open, false)) return;
  here.call.span.end = monotonic_now();
  MutexLock lock(mutex_);
  BucketTimes* const bucket = running();
  if (file_) file_->add(here.call, step_.number, bucket, own_thread());
  if (bucket != nullptr) {
    keep(bucket->calls, here.call);
  } else if (is_open_ && own_thread() == trains_ && here.call.span.begin >= step_.whole.begin) {
    keep(step_.calls, here.call);
  }
}

void Recorder::on_wait(bool begins) {
  if (here.calls != 0) return;  // a part of the call
  if (begins) {
    if (here.waits++ == 0) here.wait_begin = monotonic_now();
    return;
  }
  if (here.waits == 0 || --here.waits != 0) return;
  const Span wait{here.wait_begin, monotonic_now()};
  if (wait.end - wait.begin < kShortestWait) return;
  MutexLock lock(mutex_);
  BucketTimes* const bucket = running();
  if (file_) file_->add_wait(wait, step_.number, bucket, own_thread());
  if (bucket != nullptr) {
    keep(bucket->waits, wait);
  } else if (is_open_ && own_thread() == trains_ && wait.begin >= step_.whole.begin) {
    keep(step_.waits, wait);
  }
}

void Recorder::on_choice(std::string_view point, const trace::Event& event) {
  const ChoiceKind kind = point == "hook"    ? ChoiceKind::hook_measured
                          : point == "shape" ? ChoiceKind::shape_measured
                                             : ChoiceKind::chosen;
  const trace::Details& details = event.details;
  const char* const hook = details.word != nullptr ? details.word : "";
  MutexLock lock(mutex_);
  if (file_)
    file_->add({kind, hook, details.bytes, details.lane, details.kind, event.sequence}, step_.number, monotonic_now());
}

// Null where nothing is recorded, and in a forked child.
std::atomic<Recorder*> active{nullptr};

void Recorder::on_event(void*, const trace::Event& event) noexcept {
  Recorder* const self = active.load(std::memory_order_acquire);
  if (self == nullptr) return;
  const std::string_view name = event.name;
  if (const std::uint64_t now = interruptions.load(std::memory_order_relaxed); here.interruptions != now) {
    here = ThreadState{};
    here.interruptions = now;
  }
  try {
    if (name.starts_with("ddp.")) {
      self->on_ddp(name.substr(4), event);
    } else if (name.starts_with("bucket.")) {
      self->on_bucket(name.substr(7), event);
    } else if (name.starts_with("group.")) {
      self->on_call(name == "group.call", event);
    } else if (name.starts_with("work.")) {
      self->on_wait(name == "work.wait");
    } else if (name.starts_with("auto.")) {
      self->on_choice(name.substr(5), event);
    }
  } catch (const std::exception&) {
    self->count_lost();  // no memory
  }
}

// The recorder, which is made at the first call. Never destroyed: threads may pass trace points after the static
// variables have gone.
Recorder& started() {
  if (Recorder* const made = active.load()) return *made;
  active.store(std::make_unique<Recorder>().release(), std::memory_order_release);
  ::pthread_atfork(nullptr, nullptr, [] { active.store(nullptr, std::memory_order_relaxed); });
  std::atexit([] {
    if (Recorder* const self = active.load()) self->end_last_step();
  });
  trace::set_sink(&Recorder::on_event, nullptr);
  return *active.load();
}

Mutex starting;  // of the recorder

}  // namespace

void record_from_environment(int rank, int world) noexcept {
  static std::atomic<bool> looked{false};
  if (looked.load(std::memory_order_relaxed) || looked.exchange(true)) return;
  try {
    const std::optional<std::string> folder = environment("GRADWIRE_RECORD");
    if (!folder || folder->empty()) return;
    MutexLock lock(starting);
    const std::uint64_t ranks = ranks_of_environment();
    const bool known = ranks != ~std::uint64_t{0};
    auto file = RecordFile::make(*folder, known ? static_cast<int>(ranks >> 32) : rank,
                                 known ? static_cast<int>(ranks & 0xffffffffU) : world);
    started().write_to(std::move(file));
  } catch (const std::exception& error) {
    log::notice(concat(error.what(), "; nothing is recorded"));
  }
}

void remove_earlier_record(const std::string& folder, int rank) { RecordFile::remove_earlier(folder, rank); }

void record_steps() noexcept {
  try {
    MutexLock lock(starting);
    started();
  } catch (const std::exception&) {
    // No memory.
  }
}

void set_recording(bool on) noexcept {
  if (active.load(std::memory_order_acquire) == nullptr) return;
  // No thread is in the recorder between the two lines.
  trace::set_sink(nullptr, nullptr);
  interruptions.fetch_add(1, std::memory_order_relaxed);
  if (on) trace::set_sink(&Recorder::on_event, nullptr);
}

void begin_step() noexcept {
  if (Recorder* const self = active.load(std::memory_order_acquire)) self->begin_step();
}

void end_step() noexcept {
  if (Recorder* const self = active.load(std::memory_order_acquire)) self->end_step();
}

void tell_loss(double loss) noexcept {
  if (Recorder* const self = active.load(std::memory_order_acquire)) self->tell_loss(loss);
}

StepTimes last_step() {
  Recorder* const self = active.load(std::memory_order_acquire);
  return self == nullptr ? StepTimes{} : self->last_step();
}

StepTotals step_totals() {
  Recorder* const self = active.load(std::memory_order_acquire);
  return self == nullptr ? StepTotals{} : self->totals();
}

}  // namespace gradwire::observe
