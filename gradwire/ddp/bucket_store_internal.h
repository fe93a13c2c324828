// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The memory of the buckets and where each gradient lies in it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include "gradwire/ddp/bucket_plan.h"
#include "gradwire/ddp/grad_bucket.h"
#include "gradwire/ddp/replica_sync_internal.h"
#include "gradwire/ddp/slot_loan_internal.h"
#include "gradwire/process_group/process_group.h"

namespace gradwire::internal {

// Memory for all gradients, one block for each (dtype, device), cut into buckets. Rebuilding the buckets cuts the same
// memory anew, so that old and new ones never exist side by side. Not thread-safe.
class BucketStore {
 public:
  struct Bucket {
    std::shared_ptr<const BucketLayout> layout;
    at::Tensor buffer;
    std::vector<at::Tensor>
        views;  // into buffer, one a slot; no views in autograd's sense, so that detach_() works on a .grad that is one
    bool sparse = false;  // of one parameter with sparse gradients: no memory
    // Whether it does not stay in the cache until it is read again; docs/decisions/0003-streamed-stores.md has the
    // measurement.
    bool is_large() const { return buffer.nbytes() >= (std::size_t{8} << 20); }
  };
  // Where a parameter's gradient lies.
  struct Place {
    std::size_t bucket = 0;
    std::size_t slot = 0;
  };

  // `bucket_dtype`: of the buckets of real floating-point parameters, instead of theirs.
  BucketStore(std::vector<NamedTensor> parameters, std::optional<at::ScalarType> bucket_dtype);

  // For the planner, in the order of the parameters.
  std::vector<TensorSpec> specs() const;

  // Gets the memory from `group` (collective) unless it is there, and makes buckets of it.
  void allocate(ProcessGroup& group);
  bool allocated() const noexcept { return allocated_; }
  // Takes effect at once when there is memory, else at allocate(). Every parameter is in exactly one bucket.
  void arrange(BucketPlan plan);

  const BucketPlan& plan() const noexcept { return plan_; }
  std::size_t bucket_count() const noexcept { return plan_.size(); }
  Bucket& bucket(std::size_t index) { return buckets_[index]; }
  const Bucket& bucket(std::size_t index) const { return buckets_[index]; }
  Place place(std::size_t parameter) const { return places_[parameter]; }
  const std::vector<std::size_t>& members(std::size_t bucket) const { return plan_[bucket]; }
  const at::Tensor& parameter(std::size_t index) const { return parameters_[index].tensor; }
  std::vector<at::Tensor> parameters() const;
  const std::string& name(std::size_t index) const { return parameters_[index].name; }
  std::size_t parameter_count() const noexcept { return parameters_.size(); }
  bool is_sparse(std::size_t parameter) const { return parameters_[parameter].sparse; }
  // The type of a parameter, and so of its gradients; not what it is while its precision is lowered.
  at::ScalarType dtype(std::size_t parameter) const { return types_[parameter].parameter; }
  // Whether the parameter's tensor has the device and the sizes that it had, and the dtype unless `lowered`: its
  // precision may be.
  bool fits(std::size_t parameter, bool lowered) const;
  // Whether a slot has that type, so that its memory may be the gradient.
  bool is_lendable(std::size_t parameter) const { return types_[parameter].parameter == types_[parameter].slot; }
  // The last bucket with memory: the last one that a hook gets.
  std::size_t last_dense_bucket() const;

  // Whether `grad` is the slot of this parameter: same memory, same strides.
  bool is_slot(const at::Tensor& grad, std::size_t parameter) const;
  // Whether `grad` lies anywhere in the memory of the buckets.
  bool owns(const at::Tensor& grad) const;
  // Makes .grad of this parameter the slot's memory, lent: see slot_loan_internal.h.
  void lend(std::size_t parameter);
  // Frees the slot of this parameter from gradients that were lent.
  void reclaim(std::size_t parameter) { loans_[parameter].reclaim(); }
  // Gives every gradient that lies in the buckets memory of its own, with its values.
  void make_gradients_private();

 private:
  struct Block {
    at::ScalarType dtype;
    at::Device device;
    at::Tensor memory;
    std::int64_t used = 0;
  };
  // Of a parameter, when it was given.
  struct Types {
    at::ScalarType parameter, slot;
    at::Device device;
    std::vector<std::int64_t> sizes;
  };
  Block& block_for(std::size_t parameter);
  void cut();
  Bucket cut_bucket(std::size_t index);

  const std::vector<NamedTensor> parameters_;
  std::vector<Types> types_;  // by parameter
  bool allocated_ = false;
  BucketPlan plan_;
  std::vector<Place> places_;
  std::vector<SlotLoan> loans_;  // by parameter
  std::vector<Block> blocks_;
  std::vector<Bucket> buckets_;
};

}  // namespace gradwire::internal
