// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/hooks/device/device_memory_internal.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "gradwire/base/error.h"
#include "gradwire/base/options.h"
#include "gradwire/base/strings.h"
#include "gradwire/ddp/stream_fence_internal.h"
#include "gradwire/hooks/memory_orders_internal.h"

namespace gradwire::internal {
namespace {

using compress::Segment;
using Segments = std::span<const Segment>;

constexpr std::string_view kResidual = "local/residual/";
constexpr std::string_view kEstimate = "local/estimate/";
constexpr std::string_view kAggregate = "aggregate/";
constexpr std::string_view kMomentum = "local/momentum/";
constexpr std::string_view kVelocity = "local/velocity/";
constexpr std::array kPrefixes{kResidual, kEstimate, kAggregate, kMomentum, kVelocity};

// What was not delivered. Finite values of opposite signs near the end of f32's range would poison every later step.
at::Tensor owed(const at::Tensor& values, const at::Tensor& delivered) {
  const at::Tensor left = values - delivered;
  return at::where(at::isfinite(left), left, 0.0);
}

class NoDeviceMemory final : public DeviceMemory {
 public:
  bool remembers() const noexcept override { return false; }
  at::Tensor before(Segments, int, const at::Tensor& gradient) override { return gradient; }
  at::Tensor after(Segments, const at::Tensor&, const at::Tensor&, const at::Tensor& mean, const at::Tensor&) override {
    return mean;
  }
};

class DeviceErrorFeedback final : public DeviceMemory {
 public:
  explicit DeviceErrorFeedback(DeviceVectors& vectors) : vectors_(vectors) {}
  at::Tensor before(Segments segments, int, const at::Tensor& gradient) override {
    return gradient + vectors_.get(kResidual, segments, gradient);
  }
  at::Tensor after(Segments segments, const at::Tensor& values, const at::Tensor& delivered, const at::Tensor& mean,
                   const at::Tensor& finite) override {
    const at::Tensor before = vectors_.get(kResidual, segments, values);
    vectors_.set(kResidual, segments, at::where(finite, owed(values, delivered), before));
    return mean;
  }

 private:
  DeviceVectors& vectors_;
};

class DeviceEf21 final : public DeviceMemory {
 public:
  explicit DeviceEf21(DeviceVectors& vectors) : vectors_(vectors) {}
  at::Tensor before(Segments segments, int, const at::Tensor& gradient) override {
    return gradient - estimate_of(segments, gradient);
  }
  at::Tensor after(Segments segments, const at::Tensor& values, const at::Tensor& delivered, const at::Tensor& mean,
                   const at::Tensor& finite) override {
    const at::Tensor estimate = estimate_of(segments, values);
    const at::Tensor aggregate = vectors_.get(kAggregate, segments, values);
    const at::Tensor gradient = at::where(finite, aggregate + mean, mean);
    vectors_.set(kEstimate, segments, at::where(finite, estimate + delivered, estimate));
    vectors_.set(kAggregate, segments, at::where(finite, gradient, aggregate));
    return gradient;
  }

 private:
  // A rank without an estimate takes the aggregate.
  at::Tensor estimate_of(Segments segments, const at::Tensor& like) {
    std::vector<at::Tensor> parts;
    for (const Segment& segment : segments) {
      const bool known = vectors_.has(kEstimate, segment);
      parts.push_back(vectors_.get(known ? kEstimate : kAggregate, std::span(&segment, 1), like));
    }
    return at::cat(parts);
  }

  DeviceVectors& vectors_;
};

class DeviceMomentum final : public DeviceMemory {
 public:
  DeviceMomentum(DeviceVectors& vectors, double momentum, double clip)
      : vectors_(vectors), momentum_(momentum), clip_(clip) {}
  at::Tensor before(Segments segments, int world, const at::Tensor& gradient) override {
    return vectors_.get(kVelocity, segments, gradient) + next_momentum(segments, clipped(segments, world, gradient));
  }
  at::Tensor after(Segments segments, const at::Tensor& values, const at::Tensor& delivered, const at::Tensor& mean,
                   const at::Tensor& finite) override {
    const at::Tensor momentum = vectors_.get(kMomentum, segments, values);
    const at::Tensor velocity = vectors_.get(kVelocity, segments, values);
    const at::Tensor next = vectors_.get(kNextMomentum, segments, values);
    vectors_.set(kVelocity, segments, at::where(finite, owed(values, delivered), velocity));
    vectors_.set(kMomentum, segments, at::where(finite, at::where(at::eq(delivered, 0), next, 0.0), momentum));
    return mean;
  }

 private:
  static constexpr std::string_view kNextMomentum = "local/next_momentum/";  // between before() and after()

  at::Tensor next_momentum(Segments segments, const at::Tensor& gradient) {
    const at::Tensor next = vectors_.get(kMomentum, segments, gradient) * momentum_ + gradient;
    vectors_.set(kNextMomentum, segments, next);
    return next;
  }

  // Each parameter's gradient, scaled down to the bound.
  at::Tensor clipped(Segments segments, int world, const at::Tensor& gradient) const {
    if (clip_ == 0) return gradient;
    const double bound = clip_ / std::sqrt(static_cast<double>(world));
    std::vector<at::Tensor> parts;
    for (const Segment& segment : segments) {
      const at::Tensor part =
          gradient.narrow(0, static_cast<std::int64_t>(segment.offset), static_cast<std::int64_t>(segment.count));
      const at::Tensor norm = at::sqrt(at::sum(at::square(part.to(at::kDouble))));
      const at::Tensor too_long = at::logical_and(at::isfinite(norm), at::gt(norm, bound));
      const at::Tensor factor = at::where(too_long, at::reciprocal(norm) * bound, 1.0).to(at::kFloat);
      parts.push_back(at::where(too_long, part * factor, part));
    }
    return at::cat(parts);
  }

  DeviceVectors& vectors_;
  const double momentum_;
  const double clip_;
};

std::string key_of(std::string_view prefix, const Segment& segment) { return concat(prefix, segment.name); }

}  // namespace

at::Tensor DeviceVectors::get(std::string_view prefix, Segments segments, const at::Tensor& like) {
  const MutexLock lock(mutex_);
  std::vector<at::Tensor> parts;
  for (const Segment& segment : segments) {
    const auto count = static_cast<std::int64_t>(segment.count);
    const auto found = entries_.find(key_of(prefix, segment));
    if (found == entries_.end()) {
      parts.push_back(at::zeros({count}, like.options().dtype(at::kFloat)));
      continue;
    }
    Entry& entry = found->second;
    if (entry.values.numel() != count) {
      throw InvalidArgument(concat("compression memory: parameter '", segment.name, "' has ", count, " values, but ",
                                   found->first, " has ", entry.values.numel(), "; load the state of this model"));
    }
    entry = {entry.values.to(like.device()), true};
    keep_for_current_stream(entry.values);  // set() may let go of it on another stream
    parts.push_back(entry.values);
  }
  return parts.size() == 1 ? parts.front() : at::cat(parts);
}

bool DeviceVectors::has(std::string_view prefix, const Segment& segment) const {
  const MutexLock lock(mutex_);
  return entries_.contains(key_of(prefix, segment));
}

void DeviceVectors::set(std::string_view prefix, Segments segments, const at::Tensor& values) {
  const MutexLock lock(mutex_);
  for (const Segment& segment : segments) {
    entries_[key_of(prefix, segment)] = {
        values.narrow(0, static_cast<std::int64_t>(segment.offset), static_cast<std::int64_t>(segment.count)), true};
  }
}

void DeviceVectors::save(compress::MemoryState& state) const {
  const MutexLock lock(mutex_);
  for (const auto& [key, entry] : entries_) {
    if (!entry.used || key.starts_with("local/next_momentum/")) continue;
    keep_for_current_stream(entry.values);
    const at::Tensor values = entry.values.to(at::kCPU).contiguous();
    state[key].assign(values.const_data_ptr<float>(), values.const_data_ptr<float>() + values.numel());
  }
}

void DeviceVectors::forget() {
  const MutexLock lock(mutex_);
  entries_.clear();
  held_.clear();
  must_fill_ = true;
}

void DeviceVectors::fill(const compress::Memory& memory) {
  const MutexLock lock(mutex_);
  if (!std::exchange(must_fill_, false)) return;
  entries_.clear();
  for (const auto& [key, values] : memory.save()) entries_[key].values = at::tensor(values, at::kFloat);
}

void DeviceVectors::keep() {
  const MutexLock lock(mutex_);
  kept_ = Kept{entries_, must_fill_};
}

void DeviceVectors::revert() {
  const MutexLock lock(mutex_);
  held_.clear();
  if (!kept_) return;
  entries_ = kept_->entries;
  must_fill_ = kept_->must_fill;
}

void DeviceVectors::reorder(std::string_view parameter, at::IntArrayRef sizes, at::IntArrayRef before,
                            at::IntArrayRef now) {
  const MutexLock lock(mutex_);
  for (const std::string_view prefix : kPrefixes) {
    const auto found = entries_.find(concat(prefix, parameter));
    if (found == entries_.end()) continue;
    Entry& entry = found->second;
    if (entry.values.numel() != c10::multiply_integers(sizes)) {
      throw InvalidArgument(concat("compression memory: parameter '", parameter, "' has ",
                                   c10::multiply_integers(sizes), " values, but ", found->first, " has ",
                                   entry.values.numel(), "; load the state of this model"));
    }
    keep_for_current_stream(entry.values);
    entry = {reordered(entry.values, sizes, before, now), true};
  }
}

void DeviceVectors::hold(std::string_view parameter) {
  const MutexLock lock(mutex_);
  for (const std::string_view prefix : kPrefixes) {
    const std::string key = concat(prefix, parameter);
    const auto found = entries_.find(key);
    held_[key] = found == entries_.end() ? std::nullopt : std::optional(found->second);
  }
}

void DeviceVectors::restore(std::string_view parameter) {
  const MutexLock lock(mutex_);
  for (const std::string_view prefix : kPrefixes) {
    const auto held = held_.find(concat(prefix, parameter));
    if (held == held_.end()) continue;
    if (held->second) {
      entries_[held->first] = *held->second;
    } else {
      entries_.erase(held->first);
    }
    held_.erase(held);
  }
}

void DeviceVectors::release() {
  const MutexLock lock(mutex_);
  held_.clear();
}

void DeviceVectors::scale(std::string_view prefix, double factor) {
  const MutexLock lock(mutex_);
  for (auto& [key, entry] : entries_) {
    if (!key.starts_with(prefix)) continue;
    keep_for_current_stream(entry.values);
    entry.values = entry.values * factor;
  }
}

std::unique_ptr<DeviceMemory> make_device_memory(const std::string& name, DeviceVectors& vectors) {
  const NamedOptions parts = split_name(name);
  Options options(concat("memory ", parts.name), parts.options);
  if (parts.name == "none") return std::make_unique<NoDeviceMemory>();
  if (parts.name == "error_feedback") return std::make_unique<DeviceErrorFeedback>(vectors);
  if (parts.name == "ef21") return std::make_unique<DeviceEf21>(vectors);
  if (parts.name == "momentum")
    return std::make_unique<DeviceMomentum>(vectors, options.number("momentum", 0.0), options.number("clip", 0.0));
  throw UnsupportedError(concat("The memory '", name,
                                "' has no form for devices, because gradwire does not know the memory; use one of "
                                "gradwire's memories for gradients on a device."));
}

}  // namespace gradwire::internal
