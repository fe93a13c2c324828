// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The copies between gradients and buckets: gradients into their slots, and averages back into the gradients.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <utility>
#include <vector>

#include "gradwire/ddp/bucket_store_internal.h"
#include "gradwire/ddp/stream_fence_internal.h"

namespace gradwire::internal {

// A gradient that autograd made in other memory is copied into its slot, and the slot becomes .grad: permanently with
// `keeps_views`, else as a loan (slot_loan_internal.h). So averages are not copied back, and gradients that accumulate
// are not copied at all. The gradient of a parameter of two DDP objects stays in its own memory until the end of the
// pass, for the other object, which reads it too. Gradients on devices are not lent: without `keeps_views` their
// averages are copied back.
//
// Not thread-safe: the Reducer's lock guards the object.
class BucketFiller final {
 public:
  // What the filler did to a bucket in this iteration.
  struct Filling {
    StreamFence filled;  // the streams that wrote the gradients
    at::Tensor sparse;   // this rank's gradient of a sparse bucket; undefined: no entries
  };
  struct Options {
    bool keeps_views = false;  // DdpOptions::gradient_as_bucket_view
    bool converts = false;     // the buckets may have another dtype than the gradients
    int rank = 0;              // for messages
  };

  // `store` must outlive the filler.
  BucketFiller(BucketStore& store, Options options) : store_(store), options_(options) {}

  // Begins an iteration with the present buckets of the store.
  void begin();
  // Stores the parameter's .grad times `factor`; zeros where .grad is undefined. Throws InvalidArgument and
  // UnsupportedError for a gradient that does not fit its slot.
  void fill(std::size_t parameter, double factor);
  // Stores zeros, for a rank that has joined. A tensor that holds the gradient of this rank's own last pass keeps its
  // values.
  void fill_zeros(std::size_t parameter);
  // Returns the filling of a bucket whose gradients are all stored. Once for each bucket of an iteration.
  Filling take(std::size_t bucket) { return std::move(fillings_[bucket]); }

  // Copies an average into the gradients of its bucket, unless it lies in their memory: a hook returned other memory, a
  // gradient could not be lent, or the bucket has another dtype.
  void write_back(std::size_t bucket, const at::Tensor& average);

  // Gives the parameter a .grad of zeros where it has none, as write_back() does without a bucket.
  void define(std::size_t parameter);

 private:
  void fill_sparse(std::size_t parameter, Filling& filling) const;
  void require_storable(std::size_t parameter, const at::Tensor& grad, const at::Tensor& slot) const;
  void warn_of_graph(const at::Tensor& grad);

  BucketStore& store_;
  const Options options_;
  std::vector<Filling> fillings_;  // by bucket
  bool warned_of_graph_ = false;
};

}  // namespace gradwire::internal
