// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/hooks/compressed_hook.h"

#include <ATen/Functions.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "gradwire/base/error.h"
#include "gradwire/base/mutex.h"
#include "gradwire/base/stable_hash.h"
#include "gradwire/base/strings.h"
#include "gradwire/ddp/kept_hook_state.h"
#include "gradwire/hooks/default_hooks.h"
#include "gradwire/hooks/device/device_compressor_internal.h"
#include "gradwire/hooks/iteration_internal.h"
#include "gradwire/hooks/memory_orders_internal.h"
#include "gradwire/hooks/support_internal.h"
#include "gradwire/process_group/flat_tensors_internal.h"
#include "gradwire/process_group/lane_scope.h"

namespace gradwire {
namespace {

constexpr const char* kIteration = "iteration";

at::Tensor byte_tensor(std::span<const std::byte> bytes) {
  // from_blob() does not take const memory.
  return at::from_blob(const_cast<std::byte*>(bytes.data()), {static_cast<std::int64_t>(bytes.size())},
                       at::TensorOptions().dtype(at::kByte));
}

class GroupTransfer final : public compress::Transfer {
 public:
  explicit GroupTransfer(std::shared_ptr<Work> work) : work_(std::move(work)) {}
  ~GroupTransfer() override {
    if (work_ == nullptr) return;
    try {
      work_->wait();
    } catch (...) {  // the call has failed already, with an error of its own
    }
  }
  GroupTransfer(const GroupTransfer&) = delete;
  GroupTransfer& operator=(const GroupTransfer&) = delete;

  void wait() override { std::exchange(work_, nullptr)->wait(); }

 private:
  std::shared_ptr<Work> work_;
};

// The transport of an exchange over a group's collectives on tensors.
class GroupTransport final : public compress::Transport {
 public:
  explicit GroupTransport(ProcessGroup& group) : group_(group), rank_(group.rank()), size_(group.size()) {}
  int rank() const noexcept override { return rank_; }
  int size() const noexcept override { return size_; }
  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all) override {
    gather(mine, all, false)->wait();
  }
  void all_to_all(std::span<const std::byte> to_each, std::span<std::byte> from_each) override {
    swap(to_each, from_each, false)->wait();
  }
  std::unique_ptr<compress::Transfer> start_all_gather(std::span<const std::byte> mine,
                                                       std::span<std::byte> all) override {
    const LaneScope::Overlap until_it_is_called;
    return std::make_unique<GroupTransfer>(gather(mine, all, overlaps_));
  }
  std::unique_ptr<compress::Transfer> start_all_to_all(std::span<const std::byte> to_each,
                                                       std::span<std::byte> from_each) override {
    const LaneScope::Overlap until_it_is_called;
    return std::make_unique<GroupTransfer>(swap(to_each, from_each, overlaps_));
  }

 private:
  std::shared_ptr<Work> gather(std::span<const std::byte> mine, std::span<std::byte> all, bool async) {
    AllGatherOptions options;
    options.async = async;
    return group_.all_gather_into_tensor(byte_tensor(all), byte_tensor(mine), options);
  }
  std::shared_ptr<Work> swap(std::span<const std::byte> to_each, std::span<std::byte> from_each, bool async) {
    AllToAllOptions options;
    options.async = async;
    return group_.all_to_all_single(byte_tensor(from_each), byte_tensor(to_each), {}, {}, options);
  }

  ProcessGroup& group_;
  const int rank_;
  const int size_;
  // On shm and threads the caller's thread moves the bytes: another thread would only take processor time from it.
  const bool overlaps_ = group_.name() != "shm" && group_.name() != "threads";
};

// The number of a bucket for the compressor: a hash of the bucket's first parameter name, equal on all ranks and in all
// runs.
std::uint64_t number_of(const std::string& name) { return stable_hash(name); }

bool compressible(const at::Tensor& buffer) {
  return buffer.scalar_type() == at::kFloat || buffer.scalar_type() == at::kDouble ||
         buffer.scalar_type() == at::kHalf || buffer.scalar_type() == at::kBFloat16;
}

class CompressedHook final : public CommHook, public Revertible {
 public:
  CompressedHook(std::unique_ptr<compress::Compressor> compressor, const CompressedHookOptions& options,
                 std::shared_ptr<ProcessGroup> group)
      : CommHook({.name = compressor->name(),
                  .parallel_safe = true,
                  .single_collective = false,
                  .groups = group ? std::vector{group} : std::vector<std::shared_ptr<ProcessGroup>>{},
                  .identity = concat(compressor->name(), ",vectors=", options.plain_vectors ? "plain" : "compressed")}),
        compressor_(std::move(compressor)),
        options_(options),
        group_(std::move(group)) {}

  Future run(GradBucket& bucket) override {
    const at::Tensor buffer = bucket.buffer();
    if (!compressible(buffer)) return allreduce_hook(group_, bucket);
    const int divisor = bucket.divisor(group_of(bucket));
    follow_divisor(divisor);
    const auto step = static_cast<std::uint64_t>(iteration_.of(bucket));
    const auto plain = [&](const BucketLayout::Slot& slot) { return options_.plain_vectors && slot.sizes.size() < 2; };
    const auto& slots = bucket.layout().slots;
    if (std::none_of(slots.begin(), slots.end(), plain)) {
      compress(bucket, slots, step, buffer);
      return completed_future(buffer);
    }
    std::vector<BucketLayout::Slot> matrices, vectors;
    for (const auto& slot : slots) (plain(slot) ? vectors : matrices).push_back(slot);
    internal::average_together(group_of(bucket), divisor, parts_of(buffer, vectors));
    if (!matrices.empty()) {
      const std::vector<at::Tensor> parts = parts_of(buffer, matrices);
      const at::Tensor packed = internal::flatten(parts);
      compress(bucket, moved_together(matrices), step, packed);
      internal::unflatten(packed, parts);
    }
    return completed_future(buffer);
  }

  void revert_unused(const std::vector<std::string>& names) override {
    for (const std::string& name : names) {
      compressor_->memory().restore(name);
      on_device_.restore(name);
    }
  }
  void end_iteration() override {
    compressor_->memory().release();
    on_device_.release();
  }

  HookState state_dict() const override {
    HookState state;
    compress::MemoryState memory = compressor_->memory().save();
    on_device_.save(memory);
    for (const auto& [key, values] : memory) state.emplace(key, orders_.saved(key, at::tensor(values, at::kFloat)));
    state.emplace(kIteration, iteration_.next());
    return state;
  }

  void load_state_dict(const HookState& state) override {
    compress::MemoryState memory;
    std::map<std::string, at::Tensor> tensors;
    const auto iteration = state.find(kIteration);
    if (iteration == state.end() || !iteration->second.isInt() || iteration->second.toInt() < 0) {
      throw InvalidArgument(concat("The hook '", traits().name, "': the state to load has no '", kIteration,
                                   "'; it was saved by another hook."));
    }
    for (const auto& [key, value] : state) {
      if (key == kIteration) continue;
      if (!value.isTensor() || value.toTensor().scalar_type() != at::kFloat) {
        throw InvalidArgument(
            concat("The hook '", traits().name, "': '", key, "' in the state to load is no float32 tensor."));
      }
      const at::Tensor values = value.toTensor().cpu().contiguous();
      memory.emplace(
          key, std::vector<float>(values.const_data_ptr<float>(), values.const_data_ptr<float>() + values.numel()));
      tensors.emplace(key, values);
    }
    compressor_->memory().load(memory);
    orders_.take(tensors);
    on_device_.forget();
    continue_from(iteration->second.toInt());
  }

  void keep_state() override {
    compressor_->memory().keep();
    on_device_.keep();
    orders_.keep();
    kept_iteration_ = iteration_.next();
  }
  void revert_state() override {
    compressor_->memory().revert();
    on_device_.revert();
    orders_.revert();
    continue_from(kept_iteration_);
  }

 private:
  void continue_from(std::int64_t iteration) {
    iteration_.set_next(iteration);
    const MutexLock lock(divisor_mutex_);
    divisor_ = 0;
  }
  ProcessGroup& group_of(GradBucket& bucket) const { return group_ != nullptr ? *group_ : bucket.group(); }

  // EF21's aggregate is a sum over the ranks, divided by the divisor of the step before. A Join may change the divisor:
  // the aggregate is then scaled. All buckets of an iteration have one divisor and begin here, so the first of them
  // finds no other bucket under way.
  void follow_divisor(int divisor) {
    const MutexLock lock(divisor_mutex_);
    const int before = std::exchange(divisor_, divisor);
    if (before == 0 || before == divisor) return;
    compress::MemoryState memory = compressor_->memory().save();
    const float factor = static_cast<float>(before) / static_cast<float>(divisor);
    for (auto& [key, values] : memory) {
      if (!key.starts_with("aggregate/")) continue;
      for (float& value : values) value *= factor;
    }
    compressor_->memory().load(memory);
    on_device_.scale("aggregate/", factor);
  }

  // Replaces `values` by the average. `values` holds the parts that `slots` name, in the bucket's dtype.
  void compress(GradBucket& bucket, const std::vector<BucketLayout::Slot>& slots, std::uint64_t step,
                const at::Tensor& values) {
    const at::Tensor floats = internal::cast_to(values, at::kFloat);
    internal::DeviceCompressor* const on_device = floats.is_cpu() ? nullptr : &device_compressor();
    const auto& names = bucket.parameter_names();
    const auto& all = bucket.layout().slots;
    std::vector<compress::Segment> segments;
    std::size_t at = 0;
    for (const auto& slot : slots) {
      while (all[at].parameter != slot.parameter) ++at;
      segments.push_back({names[at], static_cast<std::size_t>(slot.offset), static_cast<std::size_t>(slot.numel)});
      if (compressor_->memory().remembers()) follow_order(names[at], slot, on_device != nullptr);
    }
    const compress::CompressCall call{.tensor = number_of(names.empty() ? std::string() : names.front()),
                                      .step = step,
                                      .divisor = static_cast<double>(bucket.divisor(group_of(bucket)))};
    if (on_device == nullptr) {
      for (const std::size_t place : bucket.absent()) compressor_->memory().hold(names[place]);
      GroupTransport transport(group_of(bucket));
      compressor_->all_reduce(transport, segments, call,
                              {floats.data_ptr<float>(), static_cast<std::size_t>(floats.numel())});
    } else {
      for (const std::size_t place : bucket.absent()) on_device_.hold(names[place]);
      on_device->all_reduce(group_of(bucket), segments, call, floats);
    }
    if (!floats.is_same(values)) internal::cast_into(floats, values);
  }

  // The state of a module with other strides was loaded, or the module has got other strides.
  void follow_order(const std::string& parameter, const BucketLayout::Slot& slot, bool on_device) {
    const auto before = orders_.follow(parameter, slot);
    if (!before) return;
    if (on_device) return on_device_.reorder(parameter, slot.sizes, before->strides, slot.strides);
    const at::Tensor from = internal::reordered(at::arange(slot.numel), slot.sizes, before->strides, slot.strides);
    const auto* const first = from.const_data_ptr<std::int64_t>();
    compressor_->memory().reorder(parameter, std::vector<std::size_t>(first, first + slot.numel));
  }

  // Made at the first bucket on a device; a state that was loaded before goes there then. Over an engine that moves
  // memory of the host, lanes call the result side by side, each for a bucket of its own.
  internal::DeviceCompressor& device_compressor() {
    const MutexLock lock(divisor_mutex_);
    on_device_.fill(compressor_->memory());
    if (device_compressor_ == nullptr)
      device_compressor_ = std::make_unique<internal::DeviceCompressor>(*compressor_, on_device_);
    return *device_compressor_;
  }

  static std::vector<BucketLayout::Slot> moved_together(std::vector<BucketLayout::Slot> slots) {
    std::int64_t offset = 0;
    for (auto& slot : slots) slot.offset = std::exchange(offset, offset + slot.numel);
    return slots;
  }
  static std::vector<at::Tensor> parts_of(const at::Tensor& buffer, const std::vector<BucketLayout::Slot>& slots) {
    std::vector<at::Tensor> parts;
    for (const auto& slot : slots) parts.push_back(buffer.narrow(0, slot.offset, slot.numel));
    return parts;
  }

  const std::unique_ptr<compress::Compressor> compressor_;
  const CompressedHookOptions options_;
  const std::shared_ptr<ProcessGroup> group_;
  internal::DeviceVectors on_device_;
  internal::MemoryOrders orders_;
  internal::IterationCount iteration_;
  std::int64_t kept_iteration_ = 0;
  Mutex divisor_mutex_;
  // Of the iteration before; 0: there was no iteration.
  int divisor_ GRADWIRE_GUARDED_BY(divisor_mutex_) = 0;
  std::unique_ptr<internal::DeviceCompressor> device_compressor_ GRADWIRE_GUARDED_BY(divisor_mutex_);
};

}  // namespace

std::shared_ptr<CommHook> make_compressed_hook(std::unique_ptr<compress::Compressor> compressor,
                                               const CompressedHookOptions& options,
                                               std::shared_ptr<ProcessGroup> group) {
  if (compressor == nullptr) throw InvalidArgument("make_compressed_hook() got a null compressor.");
  return std::make_shared<CompressedHook>(std::move(compressor), options, std::move(group));
}

std::shared_ptr<CommHook> make_compressed_hook(std::string_view description, const CompressedHookOptions& options,
                                               std::shared_ptr<ProcessGroup> group) {
  return make_compressed_hook(compress::make_compressor(description), options, std::move(group));
}

}  // namespace gradwire
