// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// What a communication hook gets: one bucket of gradients, ready on this rank.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "gradwire/process_group/process_group.h"

namespace gradwire {

// Where the gradients of one bucket lie in its buffer. Shared by every GradBucket of that bucket; does not change until
// the buckets are rebuilt.
struct BucketLayout {
  struct Slot {
    std::size_t parameter = 0;  // its number in the order of module.parameters(), among those that need a gradient
    std::int64_t offset = 0;    // in elements, from the start of the buffer
    std::int64_t numel = 0;
    std::vector<std::int64_t> sizes;
    std::vector<std::int64_t> strides;  // the parameter's own when it is dense, else row-major
  };
  std::size_t index = 0;
  std::int64_t numel = 0;
  at::ScalarType dtype = at::kFloat;
  at::Device device = at::kCPU;
  std::vector<Slot> slots;
  std::vector<at::Tensor> parameters;  // in the order of `slots`
  std::vector<std::string> names;      // their names in the module, e.g. "encoder.weight"

  // Adds a slot behind the others, for gradients like `like`: of its sizes, and of its strides where it is dense.
  // `number` is the parameter's. The layout's index, dtype and device stay the caller's to set.
  void append(std::size_t number, const at::Tensor& like, at::Tensor parameter, std::string name);

  // A view of `buffer` (1-D, numel elements) for each slot, with the parameter's sizes and strides.
  std::vector<at::Tensor> views(const at::Tensor& buffer) const;
};

// One bucket in one iteration. A hook may read and write buffer() and the views freely until its future completes; not
// thread-safe, but each call of a hook has a GradBucket of its own. Cheap to copy.
class GradBucket {
 public:
  // `group` is what collectives of this bucket go through; it outlives the bucket.
  GradBucket(std::shared_ptr<const BucketLayout> layout, at::Tensor buffer, ProcessGroup& group, int divisor,
             bool is_last, std::uint32_t iteration = 0, bool joined = false);

  // Buckets count from 0 in the order in which they are launched, the same on all ranks.
  std::size_t index() const noexcept { return layout_->index; }
  // Whether it is the last bucket of this iteration that a hook gets. Exactly one is.
  bool is_last() const noexcept { return is_last_; }
  // Counts the synchronized backward passes from 0, the same on all ranks.
  std::uint32_t iteration() const noexcept { return iteration_; }

  // The gradients, flat: 1-D, contiguous, not divided by anything yet. On shm this memory is reduced where it lies.
  const at::Tensor& buffer() const noexcept { return buffer_; }
  // Replaces buffer(); 1-D, contiguous, as many elements, on the same device (any dtype). Throws InvalidArgument
  // otherwise. Changes what the hook sees, not what DDP takes as the result: that is what the hook's future holds.
  void set_buffer(at::Tensor buffer);

  // Views into buffer(), one a parameter, with the parameter's sizes and its strides where it is dense (so
  // channels_last gradients are channels_last, unlike in PyTorch).
  std::vector<at::Tensor> gradients() const { return layout_->views(buffer_); }
  // The parameters, in the order of gradients().
  const std::vector<at::Tensor>& parameters() const noexcept { return layout_->parameters; }
  // Their names in the module. A key for state that survives a rebuild of the buckets.
  const std::vector<std::string>& parameter_names() const noexcept { return layout_->names; }
  const BucketLayout& layout() const noexcept { return *layout_; }

  // The group for this bucket's collectives: a lane's duplicate of DDP's group, or the group itself where it has no
  // duplicates.
  ProcessGroup& group() const noexcept { return *group_; }
  // What sums are to be divided by: the number of ranks that take part; see JoinOptions for those that have joined.
  int divisor() const noexcept { return divisor_; }
  // This rank has no inputs left (join.h) and takes part with zeros.
  bool joined() const noexcept { return joined_; }

 private:
  std::shared_ptr<const BucketLayout> layout_;
  at::Tensor buffer_;
  ProcessGroup* group_;
  int divisor_;
  bool is_last_;
  std::uint32_t iteration_;
  bool joined_;
};

}  // namespace gradwire
