// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The intake of an iteration's gradients: it puts the gradients that came, and what stands for the others, into the
// buckets.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include "gradwire/ddp/bucket_filler_internal.h"
#include "gradwire/ddp/bucket_store_internal.h"
#include "gradwire/ddp/iteration_internal.h"
#include "gradwire/ddp/parameter_use_internal.h"
#include "gradwire/process_group/process_group.h"

namespace gradwire::internal {

// Knows which gradients an iteration waits for (ParameterUse), tells the Iteration which ones are ready, and has the
// BucketFiller copy them. A `factor` is that of BucketFiller::fill(); without a factor nothing is communicated, and
// nothing is copied. Not thread-safe: the Reducer's lock guards the object.
class GradientIntake final {
 public:
  using Factor = std::optional<double>;

  // `store` and `iteration` must outlive this object.
  GradientIntake(BucketStore& store, Iteration& iteration, GraphKind graph, BucketFiller::Options options);

  // Begins an iteration with the present buckets of the store.
  void begin() { filler_.begin(); }

  // The gradient of `parameter` was accumulated, in a synchronized or a local pass. Returns whether .grad is defined.
  bool touch(std::size_t parameter);
  // In a synchronized pass, after touch(), which returned `defined`: takes the gradient, unless more gradients of
  // `parameter` will come. Returns whether it was taken. Throws as take().
  bool take_arrived(std::size_t parameter, bool defined, Factor factor);

  // At the beginning of a pass. Whether to wait for the end of the pass, and to call take_learnt() there.
  bool learns() const noexcept { return use_.learning(); }
  // At the beginning of a pass that does not learn: takes the parameters to which the pass brings no gradient.
  // reaches(parameter): whether the pass goes through the parameter; asked with GraphKind::searched only. Throws as
  // take().
  template <class Reaches>
  void take_absent(const Reaches& reaches, Factor factor) {
    if (use_.kind() == GraphKind::searched) {
      std::vector<bool> reached;
      for (std::size_t i = 0; i < store_.parameter_count(); ++i) reached.push_back(reaches(i));
      use_.expect(std::move(reached));
    }
    for (const std::size_t absent : use_.absent()) take_kept(absent, factor);
  }
  // At the end of a pass that learns: takes all parameters. Throws as take().
  void take_learnt(Factor factor);
  // On a rank that has joined: all parameters take part, with zeros. `copies`: as a factor that is given.
  void take_zeros(bool copies);

  // Throws InvalidArgument: `parameter` got a second gradient in an iteration.
  [[noreturn]] void refuse_second(std::size_t parameter) const;
  // Throws InvalidArgument, with the names of the missing parameters, when the iteration has begun and waits for
  // gradients. `ranks`: the size of the group, for the message.
  void require_finished(int ranks) const;

  // Returns what was done to a bucket whose gradients are all taken; as BucketFiller::take().
  BucketFiller::Filling filling(std::size_t bucket) { return filler_.take(bucket); }

  // For such a bucket: GradBucket::absent().
  std::vector<std::size_t> absent_in(std::size_t bucket) const;

  // Once the last bucket was launched: as ParameterUse::share().
  void share_use(ProcessGroup& control) { use_.share(control); }
  // Copies an average into the gradients of its bucket; as BucketFiller::write_back().
  void write_back(std::size_t bucket, const at::Tensor& average) { filler_.write_back(bucket, average); }
  // After write_back(): as ParameterUse::restore().
  void restore_unused() { use_.restore(store_.parameters()); }
  // Instead of the last three, where this rank is alone and reduces nothing: gradients that are undefined become those
  // that a reduction would bring.
  void settle_alone();
  // After restore_unused(): as ParameterUse::unused_anywhere().
  std::vector<std::size_t> unused_anywhere() const { return use_.unused_anywhere(); }
  // Ends the iteration. Returns the parameters that got no gradient on this rank; valid until the next call.
  const std::vector<std::size_t>& end_iteration();
  // As ParameterUse::expect_new_rank().
  void expect_new_rank() { use_.expect_new_rank(); }

 private:
  // Throws InvalidArgument for a second gradient, and what BucketFiller::fill() throws.
  void take(std::size_t parameter, Factor factor);
  // The same for a parameter without a gradient in this pass: its .grad is kept, for restore_unused().
  void take_kept(std::size_t parameter, Factor factor);

  BucketStore& store_;
  Iteration& iteration_;
  const int rank_;
  ParameterUse use_;
  BucketFiller filler_;
};

}  // namespace gradwire::internal
