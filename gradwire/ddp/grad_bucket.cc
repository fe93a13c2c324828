// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/ddp/grad_bucket.h"

#include <c10/util/strides.h>

#include <utility>

#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "gradwire/process_group/process_group.h"

namespace gradwire {

void BucketLayout::append(std::size_t number, const at::Tensor& like, at::Tensor parameter, std::string name) {
  const auto row_major = c10::contiguous_strides(like.sizes());
  const at::IntArrayRef strides = like.is_non_overlapping_and_dense() ? like.strides() : at::IntArrayRef(row_major);
  slots.push_back({.parameter = number,
                   .offset = numel,
                   .numel = like.numel(),
                   .sizes = like.sizes().vec(),
                   .strides = strides.vec()});
  numel += like.numel();
  parameters.push_back(std::move(parameter));
  names.push_back(std::move(name));
}

std::vector<at::Tensor> BucketLayout::views(const at::Tensor& buffer) const {
  std::vector<at::Tensor> out;
  out.reserve(slots.size());
  for (const Slot& slot : slots) {
    out.push_back(buffer.as_strided(slot.sizes, slot.strides, buffer.storage_offset() + slot.offset));
  }
  return out;
}

int GradBucket::divisor(const ProcessGroup& over) const noexcept {
  return over.size() == group_->size() ? divisor_ : over.size();
}

GradBucket::GradBucket(std::shared_ptr<const BucketLayout> layout, at::Tensor buffer, ProcessGroup& group, int divisor,
                       bool is_last, std::uint32_t iteration, bool joined, std::vector<std::size_t> absent)
    : layout_(std::move(layout)),
      buffer_(std::move(buffer)),
      group_(&group),
      weak_group_(group.weak_from_this()),
      divisor_(divisor),
      is_last_(is_last),
      iteration_(iteration),
      joined_(joined),
      absent_(std::move(absent)) {}

void GradBucket::set_buffer(at::Tensor buffer) {
  if (!buffer.defined() || buffer.dim() != 1 || buffer.numel() != layout_->numel || !buffer.is_contiguous() ||
      buffer.device() != layout_->device) {
    throw InvalidArgument(concat("set_buffer() of bucket ", index(), " wants a contiguous 1-D tensor of ",
                                 layout_->numel, " elements on ", layout_->device, "; got ",
                                 buffer.defined() ? concat("sizes ", buffer.sizes(), " on ", buffer.device())
                                                  : std::string("an undefined tensor"),
                                 "."));
  }
  buffer_ = std::move(buffer);
}

}  // namespace gradwire
