// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/optim/fused_bucket_internal.h"

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <utility>

#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "gradwire/ddp/comm_hook.h"
#include "gradwire/ddp/replica_sync_internal.h"
#include "gradwire/hooks/averaged_bucket_internal.h"
#include "gradwire/kernels/reduce.h"
#include "gradwire/process_group/dtype_internal.h"

namespace gradwire::internal {
namespace {

// Shards are whole cache lines: two ranks write no line together.
constexpr std::int64_t kShardMultiple = 64;

std::int64_t shard_numel_of(std::int64_t numel, int size) {
  const std::int64_t multiple = kShardMultiple * size;
  return (numel + multiple - 1) / multiple * kShardMultiple;
}

// Whether the group multiplies by 1/N as it sums; else the gradients are multiplied before.
bool premultiplies(const GradBucket& bucket) {
  return bucket.group().multiplies_as_it_sums() && to_floating_dtype(bucket.layout().dtype).has_value();
}

ReduceOp average_op(const GradBucket& bucket) {
  return premultiplies(bucket) ? ReduceOp::premul_sum(1.0 / bucket.divisor()) : ReduceOp::sum();
}

void multiply_before(const GradBucket& bucket, at::Tensor gradients) {
  if (!premultiplies(bucket) && bucket.divisor() != 1) gradients.mul_(1.0 / bucket.divisor());
}

}  // namespace

Future average_of(const GradBucket& bucket) {
  multiply_before(bucket, bucket.buffer());
  AllReduceOptions options;
  options.op = average_op(bucket);
  return tensor_future(bucket.group().all_reduce({bucket.buffer()}, options));
}

FusedBucket::FusedBucket(const GradBucket& bucket, ZeroParts& parts, const torch::optim::OptimizerParamGroup& options,
                         std::int64_t run_numel)
    : rank_(parts.group->rank()),
      size_(parts.group->size()),
      shard_numel_(shard_numel_of(bucket.layout().numel, size_)) {
  const BucketLayout& layout = bucket.layout();
  const std::int64_t numel = packed_numel(layout.parameters);
  memory_ = layout.device.is_cpu() ? parts.channel->allocate(numel, layout.dtype)
                                   : at::zeros({numel}, at::TensorOptions(layout.dtype).device(layout.device));
  pack(layout);
  if (agree_on_shared_memory(bucket, *parts.channel)) everywhere_ = parts.channel->symmetric_memory(memory_);
  for (int owner = 0; owner < size_; ++owner) {
    const std::int64_t end = std::min(layout.numel, (owner + 1) * shard_numel_);
    for (std::int64_t begin = owner * shard_numel_; begin < end; begin += run_numel)
      add_run(layout, owner, begin, std::min(run_numel, end - begin), parts, options);
  }
}

void FusedBucket::pack(const BucketLayout& layout) {
  for (std::size_t slot = 0; slot < layout.slots.size(); ++slot) {
    const at::Tensor& parameter = layout.parameters[slot];
    if (parameter.scalar_type() == layout.dtype && parameter.device() == layout.device &&
        parameter.sizes() == layout.slots[slot].sizes)
      continue;
    throw InvalidArgument(concat(kZeroName, ": parameter '", layout.names[slot], "' is ", parameter.scalar_type(),
                                 parameter.sizes(), " on ", parameter.device(), " on rank ", rank_, ", but was ",
                                 layout.dtype, layout.slots[slot].sizes, " on ", layout.device,
                                 " when DistributedDataParallel was made; the fused hook cannot step it."));
  }
  // Gradients lie in the bucket by the strides that the parameter had then; it may have other ones now.
  const c10::NoGradGuard no_grad;
  for (std::size_t slot = 0; slot < layout.slots.size(); ++slot) {
    const at::Tensor& parameter = layout.parameters[slot];
    if (parameter.numel() == 0 || parameter.strides() == at::IntArrayRef(layout.slots[slot].strides)) continue;
    const at::Tensor same = at::empty_strided(layout.slots[slot].sizes, layout.slots[slot].strides,
                                              parameter.options().requires_grad(false).memory_format(std::nullopt));
    parameter.set_data(same.copy_(parameter));
  }
  places_ = pack_into(memory_, layout.parameters);
}

bool FusedBucket::agree_on_shared_memory(const GradBucket& bucket, ProcessGroup& channel) {
  const bool mine = to_floating_dtype(bucket.layout().dtype).has_value() &&
                    !channel.symmetric_memory(memory_).empty() && !channel.symmetric_memory(bucket.buffer()).empty();
  const auto votes = gather_integers(channel, {mine ? 1 : 0});
  return std::all_of(votes.begin(), votes.end(), [](const auto& vote) { return vote[0] == 1; });
}

void FusedBucket::add_run(const BucketLayout& layout, int owner, std::int64_t begin, std::int64_t numel,
                          ZeroParts& parts, const torch::optim::OptimizerParamGroup& options) {
  Run run;
  run.begin = begin;
  run.numel = numel;
  auto piece = parts.make_piece(owner);
  std::vector<at::Tensor> tensors;
  for (std::size_t i = 0; i < layout.slots.size(); ++i) {
    const BucketLayout::Slot& slot = layout.slots[i];
    const std::int64_t first = std::max(begin, slot.offset);
    const std::int64_t end = std::min(begin + numel, slot.offset + slot.numel);
    if (first >= end) continue;
    const Segment segment{layout.parameters[i], first - slot.offset, end - first};
    const std::int64_t place = places_[i] + segment.begin;
    if (tensors.empty()) run.memory_begin = place;
    run.memory_numel = place + segment.numel - run.memory_begin;
    tensors.push_back(memory_.narrow(0, place, segment.numel));
    piece->segments.push_back(segment);
  }
  if (owner == rank_) {
    ParamGroups group;
    group.push_back(with_options_of(options, tensors));
    piece->optimizer = parts.make(std::move(group));
    run.piece = piece.get();
    runs_.push_back(run);
  }
  piece->groups.emplace_back(std::move(tensors));
  pieces_.push_back(piece.get());
  parts.pieces.push_back(std::move(piece));
}

void FusedBucket::step(const GradBucket& bucket, const ParamGroups& groups) {
  const c10::NoGradGuard no_grad;
  pack(bucket.layout());  // torch::load() and set_data() may have given parameters other memory
  everywhere_.empty() ? step_by_collectives(bucket, groups) : step_in_shared_memory(bucket, groups);
  mark_changed(bucket.parameters());
}

// `gradients`: of the run, in the order of the bucket.
void FusedBucket::step_run(const Run& run, const at::Tensor& gradients, const ParamGroups& groups) {
  copy_options(groups, run.piece->optimizer->param_groups());
  std::vector<LentGradient> lent;
  const std::vector<at::Tensor>& tensors = run.piece->groups[0].params();
  lent.reserve(tensors.size());
  std::int64_t offset = 0;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const std::int64_t numel = tensors[i].numel();
    // An optimizer does not step a tensor without a gradient.
    const bool steps = run.piece->segments[i].parameter.requires_grad();
    lent.emplace_back(tensors[i], steps ? gradients.narrow(0, offset, numel) : at::Tensor());
    offset += numel;
  }
  run.piece->optimizer->step();
}

// Copies the run's parameters into the memory of all other ranks. These read them in their next forward, when this
// rank's cache is of no use: so past the cache (0.3 ms of 25 for 25 MB on an AMD EPYC).
void FusedBucket::give(const Run& run, DType dtype) const {
  const auto offset = static_cast<std::size_t>(run.memory_begin) * memory_.element_size();
  const void* const stepped[] = {static_cast<const std::byte*>(memory_.const_data_ptr()) + offset};
  std::vector<void*> elsewhere;
  for (int peer = 0; peer < size_; ++peer) {
    auto* const memory = static_cast<std::byte*>(everywhere_[static_cast<std::size_t>(peer)].data_ptr());
    if (peer != rank_) elsewhere.push_back(memory + offset);
  }
  if (elsewhere.empty()) return;
  kernels::reduce(dtype, ReduceOp::sum(), stepped, elsewhere, static_cast<std::size_t>(run.memory_numel),
                  kernels::Store::streamed);
}

void FusedBucket::step_in_shared_memory(const GradBucket& bucket, const ParamGroups& groups) {
  ProcessGroup& group = bucket.group();
  const Tensors gradients = group.symmetric_memory(bucket.buffer());
  GRADWIRE_CHECK(gradients.size() == everywhere_.size());
  const auto dtype = to_floating_dtype(bucket.layout().dtype);
  const auto size = static_cast<std::int64_t>(memory_.element_size());
  const ReduceOp op = ReduceOp::premul_sum(1.0 / bucket.divisor());
  const at::Tensor averages = at::empty({runs_.empty() ? 0 : runs_.front().numel}, memory_.options());
  std::vector<const void*> sources(gradients.size());
  void* const destinations[] = {averages.data_ptr()};

  group.barrier()->wait();  // all ranks' gradients are in the bucket
  for (const Run& run : runs_) {
    for (std::size_t peer = 0; peer < gradients.size(); ++peer)
      sources[peer] = static_cast<const std::byte*>(gradients[peer].const_data_ptr()) + run.begin * size;
    kernels::reduce(*dtype, op, sources, destinations, static_cast<std::size_t>(run.numel));
    step_run(run, averages, groups);
    give(run, *dtype);
  }
  group.barrier()->wait();  // all parameters are here, and this rank's gradients were read
}

// This rank's shard of the averages, or as much of it as the bucket has.
at::Tensor FusedBucket::shard_of_average(const GradBucket& bucket) {
  const at::Tensor& buffer = bucket.buffer();
  const std::int64_t begin = std::min(buffer.numel(), rank_ * shard_numel_);
  if (group_scatters_) {
    const std::int64_t padded = shard_numel_ * size_;
    at::Tensor input = buffer;
    if (padded != buffer.numel() || !premultiplies(bucket)) {
      input = at::zeros({padded}, buffer.options());
      input.narrow(0, 0, buffer.numel()).copy_(buffer);
    }
    ReduceScatterOptions options;
    options.op = average_op(bucket);
    const at::Tensor shard = at::empty({shard_numel_}, buffer.options());
    try {
      multiply_before(bucket, input);
      bucket.group().reduce_scatter_tensor(shard, input, options)->wait();
      return shard;
    } catch (const UnsupportedError&) {
      group_scatters_ = false;  // on all ranks: the class of the group lacks it
    }
  }
  GradBucket copy = bucket;
  copy.set_buffer(buffer.clone());
  const at::Tensor average = tensor_of(*average_of(copy));
  return average.narrow(0, begin, std::min(shard_numel_, buffer.numel() - begin));
}

void FusedBucket::step_by_collectives(const GradBucket& bucket, const ParamGroups& groups) {
  const at::Tensor averages = shard_of_average(bucket);
  at::Tensor mine = at::zeros({shard_numel_}, memory_.options());
  for (const Run& run : runs_) {
    std::int64_t offset = run.begin - rank_ * shard_numel_;
    step_run(run, averages.narrow(0, offset, run.numel), groups);
    for (const at::Tensor& tensor : run.piece->groups[0].params()) {
      mine.narrow(0, offset, tensor.numel()).copy_(tensor);
      offset += tensor.numel();
    }
  }
  const at::Tensor all = at::empty({shard_numel_ * size_}, memory_.options());
  bucket.group().all_gather_into_tensor(all, mine)->wait();
  const std::vector<BucketLayout::Slot>& slots = bucket.layout().slots;
  for (std::size_t i = 0; i < slots.size(); ++i)
    memory_.narrow(0, places_[i], slots[i].numel).copy_(all.narrow(0, slots[i].offset, slots[i].numel));
}

}  // namespace gradwire::internal
