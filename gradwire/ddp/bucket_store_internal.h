// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The memory of the buckets, and the place of each gradient in it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include "gradwire/ddp/bucket_plan.h"
#include "gradwire/ddp/grad_bucket.h"
#include "gradwire/ddp/parameter_claims_internal.h"
#include "gradwire/ddp/replica_sync_internal.h"
#include "gradwire/ddp/slot_loan_internal.h"
#include "gradwire/process_group/process_group.h"

namespace gradwire::internal {

// The memory for all gradients: one block for each (dtype, device), which is cut into buckets. A rebuild of the buckets
// cuts the same memory anew, so old and new buckets never exist at the same time. Not thread-safe.
class BucketStore {
 public:
  struct Bucket {
    std::shared_ptr<const BucketLayout> layout;
    at::Tensor buffer;
    // A view into `buffer` for each slot. These are no views in autograd's sense, so detach_() works on such a .grad.
    std::vector<at::Tensor> views;
    bool sparse = false;  // true: the bucket of one parameter with sparse gradients, without memory
    // Whether the bucket is too large to stay in the cache until it is read again. The limit was measured:
    // docs/decisions/0003-streamed-stores.md.
    bool is_large() const { return buffer.nbytes() >= (std::size_t{8} << 20); }
  };
  // The place of a parameter's gradient.
  struct Place {
    std::size_t bucket = 0;
    std::size_t slot = 0;
  };

  // `bucket_dtype`: the dtype of the buckets of real floating-point parameters; not given: the parameters' dtype.
  BucketStore(std::vector<NamedTensor> parameters, std::optional<at::ScalarType> bucket_dtype);

  // The gradients for the planner, in the order of the parameters.
  std::vector<TensorSpec> specs() const;

  // Allocates the memory from `group` and cuts it into buckets. Collective. Does nothing when the memory is there.
  void allocate(ProcessGroup& group);
  bool allocated() const noexcept { return allocated_; }
  // Sets the plan, in which every parameter is in exactly one bucket. Cuts the memory at once when there is memory,
  // else allocate() cuts it. `is_final`: as BucketLayout's.
  void arrange(BucketPlan plan, bool is_final);

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
  // The parameter's own dtype, which its gradients have; not the dtype while mixed precision lowers it.
  at::ScalarType dtype(std::size_t parameter) const { return types_[parameter].parameter; }
  // Whether the parameter's tensor still has its device, its sizes and its dtype. With `lowered` the dtype may differ:
  // mixed precision may have lowered it.
  bool fits(std::size_t parameter, bool lowered) const;
  // Whether the slot's memory may be the gradient: it has the dtype of the parameter, and no other DDP object of this
  // process reads the gradient while this one reduces it.
  bool is_lendable(std::size_t parameter) const {
    return types_[parameter].parameter == types_[parameter].slot && !claims_.is_shared(parameter);
  }
  // The parameters are no longer this object's to average. Only make_gradients_private() may follow.
  void release_parameters() noexcept { claims_.release(); }
  // The last and the first bucket with memory. Hooks get only buckets with memory.
  std::size_t last_dense_bucket() const;
  std::size_t first_dense_bucket() const;

  // Whether `grad` is the slot of this parameter: the same memory and the same strides.
  bool is_slot(const at::Tensor& grad, std::size_t parameter) const;
  // Whether `grad` lies anywhere in the memory of the buckets.
  bool owns(const at::Tensor& grad) const;
  // Makes the slot's memory the .grad of this parameter, as a loan (slot_loan_internal.h).
  void lend(std::size_t parameter);
  // Ends the loan of this parameter's slot.
  void reclaim(std::size_t parameter) { loans_[parameter].reclaim(); }
  // Moves every gradient that lies in the buckets, with its values, to memory of its own.
  void make_gradients_private();

 private:
  struct Block {
    at::ScalarType dtype;
    at::Device device;
    at::Tensor memory;
    std::int64_t used = 0;
  };
  // The properties of a parameter when the store was made.
  struct Types {
    at::ScalarType parameter, slot;
    at::Device device;
    std::vector<std::int64_t> sizes;
  };
  Block& block_for(std::size_t parameter);
  void cut();
  Bucket cut_bucket(std::size_t index);

  const std::vector<NamedTensor> parameters_;
  ParameterClaims claims_;
  std::vector<Types> types_;  // by parameter
  bool allocated_ = false;
  BucketPlan plan_;
  bool is_final_ = false;
  std::vector<Place> places_;
  std::vector<SlotLoan> loans_;  // by parameter
  std::vector<Block> blocks_;
  std::vector<Bucket> buckets_;
};

}  // namespace gradwire::internal
