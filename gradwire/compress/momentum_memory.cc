// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "gradwire/compress/codec_internal.h"
#include "gradwire/compress/memory_internal.h"
#include "gradwire/compress/vector_memory_internal.h"

namespace gradwire::compress {
namespace {

class MomentumRule final {
 public:
  explicit MomentumRule(const MomentumOptions& options) : options_(options) {}
  std::string name() const {
    return concat("momentum:momentum=", exact(options_.momentum), ",clip=", exact(options_.clip));
  }
  bool works_by_value() const noexcept { return options_.clip == 0; }

  void before(std::span<const Segment> segments, int world, std::span<const float> gradient, std::span<float> values) {
    copy(gradient, values);
    for (const Segment& segment : segments) {
      const auto own = part_of(values, segment);
      clip(own, world);
      const auto momentum = momenta_.find(segment);
      const auto velocity = velocities_.find(segment);
      const auto next = next_momenta_.get(segment);
      for (std::size_t i = 0; i < own.size(); ++i) {
        next[i] = options_.momentum * value_at(momentum, i) + own[i];
        own[i] = value_at(velocity, i) + next[i];
      }
    }
  }

  void after(std::span<const Segment> segments, std::span<const float> values, std::span<const float> delivered,
             std::span<float>) {
    for (const Segment& segment : segments) {
      const auto momentum = momenta_.change(segment);
      const auto velocity = velocities_.change(segment);
      const auto next = next_momenta_.get(segment);
      const auto wanted = part_of(values, segment);
      const auto got = part_of(delivered, segment);
      for (std::size_t i = 0; i < momentum.size(); ++i) {
        const float owed = wanted[i] - got[i];
        velocity[i] = std::isfinite(owed) ? owed : 0.0f;
        momentum[i] = got[i] == 0 ? next[i] : 0.0f;
      }
    }
  }

  template <class Self>
  static auto kinds(Self& self) noexcept {
    return std::tie(self.momenta_, self.velocities_);
  }
  void forget_step() { next_momenta_.replace({}); }

 private:
  // Of what find() gives: empty for zeros.
  static float value_at(std::span<const float> values, std::size_t i) noexcept {
    return values.empty() ? 0.0f : values[i];
  }
  void clip(std::span<float> gradient, int world) const noexcept {
    if (options_.clip == 0) return;
    double squares = 0;
    for (const float value : gradient) squares += double{value} * double{value};
    const double norm = std::sqrt(squares);
    const double bound = double{options_.clip} / std::sqrt(static_cast<double>(world));
    if (!std::isfinite(norm) || norm <= bound) return;
    const auto factor = static_cast<float>(bound / norm);
    for (float& value : gradient) value *= factor;
  }

  MomentumOptions options_;
  NamedVectors momenta_{"local/momentum/"};
  NamedVectors velocities_{"local/velocity/"};
  NamedVectors next_momenta_{"local/next_momentum/"};  // between before() and after(); not saved
};

}  // namespace

std::unique_ptr<Memory> make_momentum_memory(const MomentumOptions& options) {
  if (!(options.momentum >= 0 && options.momentum < 1)) {
    throw InvalidArgument(concat("momentum memory: momentum=", options.momentum, " must be from 0 to below 1"));
  }
  if (!(options.clip >= 0) || !std::isfinite(options.clip)) {
    throw InvalidArgument(concat("momentum memory: clip=", options.clip, " must be 0 (off) or above, and finite"));
  }
  return std::make_unique<VectorMemory<MomentumRule>>(options);
}

}  // namespace gradwire::compress
