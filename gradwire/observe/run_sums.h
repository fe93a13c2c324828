// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// What the file of a step recorder says of a rank's run so far.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "gradwire/observe/step_times.h"

namespace gradwire::observe {

// What the thread that trains does.
enum class StepPhase : std::uint8_t { none = 0, forward = 1, backward = 2, wait = 3, rest = 4 };

// "forward". "between steps" for `none`.
std::string_view name_of(StepPhase phase) noexcept;

// A moment of a rank's run.
struct RunSums {
  int rank = 0;             // in the job
  int world = 1;            // the number of ranks of the job
  std::int64_t opened = 0;  // when the rank began to write, in nanoseconds of CLOCK_MONOTONIC
  StepPhase phase = StepPhase::none;
  std::int64_t phase_begin = 0;  // nanoseconds of CLOCK_MONOTONIC
  std::int64_t begin = 0;        // of the first step; 0 before its end, as the next
  std::int64_t end = 0;          // of the last step that has ended
  StepTotals totals;
  std::optional<double> loss{};  // the last one that was told, finite or not
};

// The number of bytes of a file of the step recorder.
std::size_t record_file_bytes() noexcept;

// Reads a file that is mapped, also while the rank writes. Nothing where the rank has not begun to write, the bytes are
// no such file, or the rank was killed in the middle of a change of the sums.
std::optional<RunSums> read_run_sums(std::span<const std::byte> file) noexcept;

}  // namespace gradwire::observe
