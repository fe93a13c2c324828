// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "gradwire/compress/exchange_internal.h"
#include "gradwire/compress/memory_internal.h"
#include "gradwire/compress/vector_memory_internal.h"

namespace gradwire::compress {
namespace {

class ErrorFeedbackRule final {
 public:
  std::string name() const { return "error_feedback"; }
  bool works_by_value() const noexcept { return true; }

  void before(std::span<const Segment> segments, int, std::span<const float> gradient, std::span<float> values) {
    copy_uncovered(segments, gradient, values);
    for (const Segment& segment : segments) {
      const auto residual = residuals_.find(segment);  // none stands for zeros
      if (residual.empty()) {
        copy(part_of(gradient, segment), part_of(values, segment));
      } else {
        add(part_of(gradient, segment), residual, part_of(values, segment));
      }
    }
  }

  void after(std::span<const Segment> segments, std::span<const float> values, std::span<const float> delivered,
             std::span<float>) {
    for (const Segment& segment : segments) {
      const auto residual = residuals_.change(segment);
      const auto wanted = part_of(values, segment);
      const auto got = part_of(delivered, segment);
      for (std::size_t i = 0; i < residual.size(); ++i) {
        const float owed = wanted[i] - got[i];
        // Finite values of opposite signs near the end of f32's range; kept, it would poison every step to come.
        residual[i] = std::isfinite(owed) ? owed : 0.0f;
      }
    }
  }

  template <class Self>
  static auto kinds(Self& self) noexcept {
    return std::tie(self.residuals_);
  }

 private:
  NamedVectors residuals_{"local/residual/"};
};

}  // namespace

std::unique_ptr<Memory> make_error_feedback_memory() { return std::make_unique<VectorMemory<ErrorFeedbackRule>>(); }

}  // namespace gradwire::compress
