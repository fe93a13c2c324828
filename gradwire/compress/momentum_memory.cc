// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "gradwire/compress/codec_internal.h"
#include "gradwire/compress/memory_internal.h"

namespace gradwire::compress {
namespace {

class MomentumMemory final : public Memory {
 public:
  explicit MomentumMemory(const MomentumOptions& options) : options_(options) {}
  std::string name() const override {
    return concat("momentum:momentum=", exact(options_.momentum), ",clip=", exact(options_.clip));
  }
  bool remembers() const noexcept override { return true; }
  bool works_by_value() const noexcept override { return options_.clip == 0; }

  void before(std::span<const Segment> segments, int world, std::span<const float> gradient,
              std::span<float> values) override {
    copy(gradient, values);
    for (const Segment& segment : segments) {
      const auto own = part_of(values, segment);
      clip(own, world);
      const auto momentum = momenta_.get(segment);
      const auto velocity = velocities_.get(segment);
      const auto next = next_momenta_.get(segment);
      for (std::size_t i = 0; i < own.size(); ++i) {
        next[i] = options_.momentum * momentum[i] + own[i];
        own[i] = velocity[i] + next[i];
      }
    }
  }

  void after(std::span<const Segment> segments, std::span<const float> values, std::span<const float> delivered,
             std::span<float>) override {
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

  MemoryState save() const override {
    MemoryState state;
    momenta_.save(state);
    velocities_.save(state);
    return state;
  }
  void load(const MemoryState& state) override {
    load_vectors(state, name(), {&momenta_, &velocities_});
    next_momenta_.replace({});
  }
  void clear() override { load({}); }
  void reorder(std::string_view parameter, std::span<const std::size_t> from) override {
    momenta_.reorder(parameter, from);
    velocities_.reorder(parameter, from);
  }
  void keep() override {
    momenta_.keep();
    velocities_.keep();
  }
  void revert() override {
    momenta_.revert();
    velocities_.revert();
  }
  void hold(std::string_view parameter) override {
    momenta_.hold(parameter);
    velocities_.hold(parameter);
  }
  void restore(std::string_view parameter) override {
    momenta_.restore(parameter);
    velocities_.restore(parameter);
  }
  void release() override {
    momenta_.release();
    velocities_.release();
  }

 private:
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
  return std::make_unique<MomentumMemory>(options);
}

}  // namespace gradwire::compress
