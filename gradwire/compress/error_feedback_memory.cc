// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "gradwire/compress/exchange_internal.h"
#include "gradwire/compress/memory_internal.h"

namespace gradwire::compress {
namespace {

class ErrorFeedbackMemory final : public Memory {
 public:
  std::string name() const override { return "error_feedback"; }
  bool remembers() const noexcept override { return true; }

  void before(std::span<const Segment> segments, int, std::span<const float> gradient,
              std::span<float> values) override {
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
             std::span<float>) override {
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

  MemoryState save() const override {
    MemoryState state;
    residuals_.save(state);
    return state;
  }
  void load(const MemoryState& state) override { load_vectors(state, name(), {&residuals_}); }
  void clear() override { load({}); }
  void reorder(std::string_view parameter, std::span<const std::size_t> from) override {
    residuals_.reorder(parameter, from);
  }
  void keep() override { residuals_.keep(); }
  void revert() override { residuals_.revert(); }
  void hold(std::string_view parameter) override { residuals_.hold(parameter); }
  void restore(std::string_view parameter) override { residuals_.restore(parameter); }
  void release() override { residuals_.release(); }

 private:
  NamedVectors residuals_{"local/residual/"};
};

}  // namespace

std::unique_ptr<Memory> make_error_feedback_memory() { return std::make_unique<ErrorFeedbackMemory>(); }

}  // namespace gradwire::compress
