// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The file into which the step recorder writes.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "gradwire/base/os_handles.h"
#include "gradwire/observe/record_format_internal.h"
#include "gradwire/observe/step_times.h"

namespace gradwire::observe {

// Something that the hook "auto" measured or chose.
struct ChoiceNote {
  record_format::ChoiceKind kind;
  std::string_view hook;
  std::uint64_t cap_bytes = 0;  // of the shape; 0: DDP's own buckets
  int lanes = 0;                // 0: DDP's own number
  std::uint64_t cost = 0;       // nanoseconds; 0 for a choice
  std::uint64_t iteration = 0;  // that was measured, or the first with the choice
};

// Of one rank. One thread at a time calls the methods. What is written is in the file when the method returns, also if
// the process is killed then.
class RecordFile {
 public:
  // Makes FOLDER/rank-K.record with room for all that it will ever hold; replaces such a file of an earlier run. Throws
  // ResourceError, which names the file and the reason, also where another process writes such a file now: a rank whose
  // child inherited the rank's environment.
  static std::unique_ptr<RecordFile> make(const std::string& folder, int rank, int world);
  // remove_earlier_record() of step_recorder.h.
  static void remove_earlier(const std::string& folder, int rank);

  // The thread that trains begins a phase of step `step`.
  void enter(record_format::Phase phase, std::uint64_t step, std::int64_t now) noexcept;
  // A step has ended. `sums` are those of the step alone.
  void add(const StepTimes& step, const StepTotals& sums, std::uint64_t thread) noexcept;
  // What has ended. `step` is the number of the step under way.
  void add(const BucketTimes& bucket, std::uint64_t step, std::uint64_t thread) noexcept;
  void add(const CallTimes& call, std::uint64_t step, const BucketTimes* bucket, std::uint64_t thread) noexcept;
  void add(const ChoiceNote& note, std::uint64_t step, std::int64_t now) noexcept;
  void add_wait(const Span& wait, std::uint64_t step, const BucketTimes* bucket, std::uint64_t thread) noexcept;
  // A wait for averages that is not the step's last one.
  void add_earlier_wait(const Span& wait, std::uint64_t step, std::uint64_t thread) noexcept;
  // A loss was told, for step `step`, which is under way or was the last that ended.
  void add_loss(double loss, std::uint64_t step, bool under_way, std::int64_t now) noexcept;
  void count_lost() noexcept { file().lost.fetch_add(1, std::memory_order_relaxed); }

  // Of a file that is open and long enough, for make().
  RecordFile(UniqueFd fd, Mapping mapping) : fd_(std::move(fd)), mapping_(std::move(mapping)) {}

 private:
  record_format::File& file() noexcept { return *reinterpret_cast<record_format::File*>(mapping_.data()); }
  record_format::Record& begin(record_format::RecordKind kind, const Span& span, std::uint64_t step,
                               std::uint64_t place) noexcept;
  void finish(record_format::Record& record) noexcept;
  std::uint64_t number_of(std::string_view name) noexcept;
  record_format::Sums& row() noexcept;
  void halve_course() noexcept;

  const UniqueFd fd_;
  const Mapping mapping_;
  std::uint64_t ticket_ = 0;
  std::optional<double> loss_;  // told for the step under way
};

}  // namespace gradwire::observe
