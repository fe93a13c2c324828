// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "gradwire/compress/memory_internal.h"
#include "gradwire/compress/vector_memory_internal.h"

namespace gradwire::compress {
namespace {

class Ef21Rule final {
 public:
  std::string name() const { return "ef21"; }
  bool works_by_value() const noexcept { return true; }

  void before(std::span<const Segment> segments, int, std::span<const float> gradient, std::span<float> values) {
    copy_uncovered(segments, gradient, values);
    for (const Segment& segment : segments) {
      subtract(part_of(gradient, segment), known_of(segment), part_of(values, segment));
    }
  }

  void after(std::span<const Segment> segments, std::span<const float>, std::span<const float> delivered,
             std::span<float> mean) {
    for (const Segment& segment : segments) {
      const auto estimate = estimate_of(segment);
      const auto aggregate = aggregates_.change(segment);
      const auto got = part_of(delivered, segment);
      const auto gradient = part_of(mean, segment);
      for (std::size_t i = 0; i < estimate.size(); ++i) {
        estimate[i] += got[i];
        aggregate[i] += gradient[i];
        gradient[i] = aggregate[i];
      }
    }
  }

  template <class Self>
  static auto kinds(Self& self) noexcept {
    return std::tie(self.estimates_, self.aggregates_);
  }

 private:
  static void subtract(std::span<const float> gradient, std::span<const float> known,
                       std::span<float> values) noexcept {
    if (known.empty()) return copy(gradient, values);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = gradient[i] - known[i];
  }

  // What the others take this rank's gradient for; empty for zeros. A rank without an estimate takes the aggregate,
  // which keeps the aggregate the mean of all estimates.
  std::span<const float> known_of(const Segment& segment) {
    const auto estimate = estimates_.find(segment);
    return estimate.empty() ? aggregates_.find(segment) : estimate;
  }

  // The estimate to update. It is made for the whole parameter: other parts look for it from then on.
  std::span<float> estimate_of(const Segment& segment) {
    const Segment whole{segment.name, 0, segment.of_parameter()};
    if (estimates_.find(whole).empty()) {
      const auto aggregate = aggregates_.find(whole);
      std::copy(aggregate.begin(), aggregate.end(), estimates_.get(whole).begin());
    }
    return estimates_.change(segment);
  }

  NamedVectors estimates_{kEstimatePrefix};
  NamedVectors aggregates_{"aggregate/"};
};

}  // namespace

std::unique_ptr<Memory> make_ef21_memory() { return std::make_unique<VectorMemory<Ef21Rule>>(); }

}  // namespace gradwire::compress
