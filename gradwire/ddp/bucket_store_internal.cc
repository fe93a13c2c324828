// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/ddp/bucket_store_internal.h"

#include <ATen/Functions.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <utility>

#include "gradwire/base/error.h"

namespace gradwire::internal {
namespace {

// Buckets start on cache lines: their sums use vector instructions, and ranks write different buckets at once.
constexpr std::int64_t kLineBytes = 64;

std::int64_t line_elements(at::ScalarType dtype) {
  return std::max<std::int64_t>(1, kLineBytes / static_cast<std::int64_t>(c10::elementSize(dtype)));
}

}  // namespace

BucketStore::BucketStore(std::vector<NamedTensor> parameters, std::optional<at::ScalarType> bucket_dtype)
    : parameters_(std::move(parameters)),
      claims_(parameters_),
      places_(parameters_.size()),
      loans_(parameters_.size()) {
  for (const NamedTensor& parameter : parameters_) {
    const at::ScalarType own = parameter.tensor.scalar_type();
    types_.push_back({own, parameter.tensor.is_floating_point() ? bucket_dtype.value_or(own) : own,
                      parameter.tensor.device(), parameter.tensor.sizes().vec()});
  }
}

std::vector<TensorSpec> BucketStore::specs() const {
  std::vector<TensorSpec> specs;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const at::Tensor& tensor = parameters_[i].tensor;
    specs.push_back({.index = i,
                     .bytes = static_cast<std::size_t>(tensor.numel()) * c10::elementSize(types_[i].slot),
                     .dtype = static_cast<std::int32_t>(types_[i].slot),
                     .device = static_cast<std::int32_t>(tensor.device().type()) * 256 + tensor.device().index(),
                     .sparse = parameters_[i].sparse});
  }
  return specs;
}

BucketStore::Block& BucketStore::block_for(std::size_t parameter) {
  const at::ScalarType dtype = types_[parameter].slot;
  const at::Device device = parameters_[parameter].tensor.device();
  for (Block& block : blocks_) {
    if (block.dtype == dtype && block.device == device) return block;
  }
  return blocks_.emplace_back(Block{dtype, device, {}, 0});
}

std::size_t BucketStore::last_dense_bucket() const {
  std::size_t last = plan_.size();
  while (last-- > 0) {
    if (!parameters_[plan_[last].front()].sparse) break;
  }
  return last;
}

std::size_t BucketStore::first_dense_bucket() const {
  std::size_t first = 0;
  while (first < plan_.size() && parameters_[plan_[first].front()].sparse) ++first;
  return first;
}

void BucketStore::allocate(ProcessGroup& group) {
  if (allocated()) return;
  for (Block& block : blocks_) block.used = 0;  // an attempt may have failed
  // The block is large enough for any plan: each parameter may begin a bucket, and so a cache line, of its own.
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (!is_sparse(i)) block_for(i).used += parameters_[i].tensor.numel() + line_elements(types_[i].slot);
  }
  for (Block& block : blocks_) {
    block.memory = block.device.is_cpu() ? group.allocate(block.used, block.dtype)
                                         : at::zeros({block.used}, at::TensorOptions(block.device).dtype(block.dtype));
  }
  allocated_ = true;
  cut();
}

void BucketStore::arrange(BucketPlan plan, bool is_final) {
  plan_ = std::move(plan);
  is_final_ = is_final;
  for (std::size_t bucket = 0; bucket < plan_.size(); ++bucket) {
    for (std::size_t slot = 0; slot < plan_[bucket].size(); ++slot) places_[plan_[bucket][slot]] = {bucket, slot};
  }
  if (allocated()) cut();
}

void BucketStore::cut() {
  const c10::NoGradGuard no_grad;
  const at::AutoDispatchBelowADInplaceOrView plain_tensors;
  buckets_.clear();
  for (Block& block : blocks_) block.used = 0;
  for (std::size_t index = 0; index < plan_.size(); ++index) buckets_.push_back(cut_bucket(index));
}

BucketStore::Bucket BucketStore::cut_bucket(std::size_t index) {
  auto layout = std::make_shared<BucketLayout>();
  layout->index = index;
  layout->is_final = is_final_;
  const std::size_t first = plan_[index].front();
  layout->dtype = types_[first].slot;
  layout->device = parameters_[first].tensor.device();
  for (const std::size_t number : plan_[index]) {
    const at::Tensor& tensor = parameters_[number].tensor;
    layout->append(number, tensor, tensor, parameters_[number].name);
  }
  Bucket bucket;
  bucket.sparse = is_sparse(first);
  if (bucket.sparse) {
    bucket.layout = std::move(layout);
    return bucket;
  }
  Block& block = block_for(first);
  bucket.buffer = block.memory.narrow(0, block.used, layout->numel);
  const std::int64_t line = line_elements(layout->dtype);
  block.used += (layout->numel + line - 1) / line * line;
  bucket.views = layout->views(bucket.buffer);
  bucket.layout = std::move(layout);
  return bucket;
}

bool BucketStore::fits(std::size_t parameter, bool lowered) const {
  const at::Tensor& tensor = parameters_[parameter].tensor;
  const Types& types = types_[parameter];
  return tensor.device() == types.device && tensor.sizes() == types.sizes &&
         (lowered || tensor.scalar_type() == types.parameter);
}

bool BucketStore::is_slot(const at::Tensor& grad, std::size_t parameter) const {
  if (is_sparse(parameter)) return false;
  const Place place = places_[parameter];
  const at::Tensor& view = buckets_[place.bucket].views[place.slot];
  // Compare the memory, not the storage: a lent slot has a storage of its own.
  return grad.is_same(view) ||
         (owns(grad) && grad.const_data_ptr() == view.const_data_ptr() && grad.sizes() == view.sizes() &&
          grad.strides() == view.strides() && grad.scalar_type() == view.scalar_type());
}

bool BucketStore::owns(const at::Tensor& grad) const {
  if (grad.layout() != at::kStrided || !grad.has_storage()) return false;
  const auto* begin = static_cast<const std::byte*>(grad.const_data_ptr());
  return std::any_of(blocks_.begin(), blocks_.end(), [&](const Block& block) {
    if (!block.memory.defined() || block.device != grad.device()) return false;
    const auto* memory = static_cast<const std::byte*>(block.memory.const_data_ptr());
    return begin >= memory && begin < memory + block.memory.nbytes();
  });
}

void BucketStore::lend(std::size_t parameter) {
  const Place place = places_[parameter];
  parameters_[parameter].tensor.mutable_grad() = loans_[parameter].lend(buckets_[place.bucket].views[place.slot]);
}

std::vector<at::Tensor> BucketStore::parameters() const {
  std::vector<at::Tensor> tensors;
  for (const NamedTensor& parameter : parameters_) tensors.push_back(parameter.tensor);
  return tensors;
}

void BucketStore::make_gradients_private() {
  const c10::NoGradGuard no_grad;
  for (SlotLoan& loan : loans_) loan.reclaim();
  for (const NamedTensor& parameter : parameters_) {
    at::Tensor& grad = parameter.tensor.mutable_grad();
    if (grad.defined() && owns(grad))
      grad = at::empty_strided(grad.sizes(), grad.strides(), grad.options()).copy_(grad);
  }
}

}  // namespace gradwire::internal
