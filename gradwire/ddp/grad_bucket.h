// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The argument of a communication hook: one bucket of gradients that is ready on this rank.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "gradwire/process_group/process_group.h"

namespace gradwire {

// The layout of one bucket: where its gradients lie in the buffer. All GradBuckets of the bucket share the layout. A
// layout is immutable; when DDP rebuilds its buckets, the new buckets get new layouts.
struct BucketLayout {
  // The place of one gradient.
  struct Slot {
    // The parameter's number, in the order of module.parameters(), among the parameters that need a gradient.
    std::size_t parameter = 0;
    std::int64_t offset = 0;  // in elements, from the start of the buffer
    std::int64_t numel = 0;   // in elements
    std::vector<std::int64_t> sizes;
    std::vector<std::int64_t> strides;  // the parameter's strides when the parameter is dense, else row-major
  };
  std::size_t index = 0;  // the bucket's number: see GradBucket::index()
  // Whether DDP keeps these buckets, unless a hook chooses others (reduction_shape.h). False in the first iteration,
  // which finds the order of the gradients, unless the order was loaded (DdpCore::set_bucket_order()).
  bool is_final = false;
  std::int64_t numel = 0;  // the number of elements of the buffer
  at::ScalarType dtype = at::kFloat;
  at::Device device = at::kCPU;
  std::vector<Slot> slots;
  std::vector<at::Tensor> parameters;  // in the order of `slots`
  std::vector<std::string> names;      // the parameters' names in the module, for example "encoder.weight"

  // Adds a slot behind the others, for gradients like `like`: of its sizes, and of its strides where it is dense.
  // `number` is the parameter's. The layout's index, dtype and device stay the caller's to set.
  void append(std::size_t number, const at::Tensor& like, at::Tensor parameter, std::string name);

  // Returns a view into `buffer` (1-D, contiguous, numel elements) for each slot, with the slot's sizes and strides.
  std::vector<at::Tensor> views(const at::Tensor& buffer) const;
};

// One bucket in one iteration. A hook may read and write buffer() and the views until the hook's future completes. A
// GradBucket is not thread-safe, but each call of a hook has a GradBucket of its own. Copies are cheap and share the
// buffer.
class GradBucket {
 public:
  // `group` carries the collectives of this bucket, and must outlive what is called on it through the bucket.
  GradBucket(std::shared_ptr<const BucketLayout> layout, at::Tensor buffer, ProcessGroup& group, int divisor,
             bool is_last, std::uint32_t iteration = 0, bool joined = false, std::vector<std::size_t> absent = {});

  // The bucket's number, from 0, in the order in which buckets are launched. The same on all ranks.
  std::size_t index() const noexcept { return layout_->index; }
  // True for exactly one bucket of an iteration: the last one that a hook gets.
  bool is_last() const noexcept { return is_last_; }
  // The number of synchronized backward passes before this one. The same on all ranks.
  std::uint32_t iteration() const noexcept { return iteration_; }

  // The gradients as one flat tensor: 1-D, contiguous, not yet divided. On the shm backend the ranks reduce this memory
  // in place.
  const at::Tensor& buffer() const noexcept { return buffer_; }
  // Replaces buffer(). The new buffer is 1-D and contiguous, has the same number of elements on the same device, and
  // may have another dtype. Otherwise throws InvalidArgument and changes nothing. DDP takes the result from the hook's
  // future, not from here.
  void set_buffer(at::Tensor buffer);

  // Returns a view into buffer() for each parameter, with the parameter's sizes. The view of a dense parameter has the
  // parameter's strides, so channels_last gradients are channels_last (unlike in PyTorch).
  std::vector<at::Tensor> gradients() const { return layout_->views(buffer_); }
  // The parameters, in the order of gradients().
  const std::vector<at::Tensor>& parameters() const noexcept { return layout_->parameters; }
  // The parameters' names in the module, in the same order. State under these names survives a rebuild of the buckets.
  const std::vector<std::string>& parameter_names() const noexcept { return layout_->names; }
  const BucketLayout& layout() const noexcept { return *layout_; }

  // The group for this bucket's collectives: the lane's duplicate of DDP's group, or DDP's group itself when that group
  // cannot be duplicated.
  ProcessGroup& group() const noexcept { return *group_; }
  // The same, for who keeps the bucket for longer than the hook's call: null when the group has gone, or is not held by
  // a std::shared_ptr.
  std::shared_ptr<ProcessGroup> shared_group() const noexcept { return weak_group_.lock(); }
  // The divisor of sums over the ranks: the number of ranks that take part. In a Join, see
  // JoinOptions::divide_by_initial_world_size.
  int divisor() const noexcept { return divisor_; }
  // The divisor of sums over another group, such as a subgroup: divisor() where that group has as many ranks as
  // group(), else its number of ranks.
  int divisor(const ProcessGroup& over) const noexcept;
  // True on a rank that has no inputs left (join.h) and takes part with zeros.
  bool joined() const noexcept { return joined_; }
  // The places, in the order of gradients(), of the parameters that got no gradient on this rank since the iteration
  // before (find_unused_parameters, static_graph, join.h). Their gradients here are zeros, or what .grad holds. When no
  // rank has a gradient, DDP does not apply the average: see CommHook::revert_unused().
  const std::vector<std::size_t>& absent() const noexcept { return absent_; }

 private:
  std::shared_ptr<const BucketLayout> layout_;
  at::Tensor buffer_;
  ProcessGroup* group_;
  std::weak_ptr<ProcessGroup> weak_group_;  // of the same group
  int divisor_;
  bool is_last_;
  std::uint32_t iteration_;
  bool joined_;
  std::vector<std::size_t> absent_;
};

}  // namespace gradwire
