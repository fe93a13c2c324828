// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/ddp/parameter_hooks_internal.h"

#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "gradwire/ddp/backward_watch_internal.h"

namespace gradwire::internal {

void ParameterHooks::attach(const BucketStore& store) {
  hooks_.clear();
  for (std::size_t i = 0; i < store.parameter_count(); ++i)
    hooks_.emplace_back(store.parameter(i), [this, i] { on_gradient_(i); });
}

void ParameterHooks::require_unchanged(const BucketStore& store, bool lowered, int rank) {
  for (std::size_t i = 0; i < store.parameter_count(); ++i) {
    if (store.fits(i, lowered)) continue;
    const at::Tensor& parameter = store.parameter(i);
    throw InvalidArgument(concat("Parameter '", store.name(i), "' is ", parameter.scalar_type(), parameter.sizes(),
                                 " on ", parameter.device(), " on rank ", rank,
                                 ", but had another dtype, device or other sizes when DistributedDataParallel was "
                                 "made; change the module (or load it from a file) first, then wrap it."));
  }
}

void ParameterHooks::follow(const BucketStore& store) {
  for (std::size_t i = 0; i < hooks_.size(); ++i) {
    if (!hooks_[i].is_of(store.parameter(i))) return attach(store);
  }
}

bool ParameterHooks::current_pass_reaches(std::size_t parameter) const {
  return gradwire::internal::current_pass_reaches(hooks_[parameter]);
}

bool ParameterHooks::current_pass_passes_by() const { return gradwire::internal::current_pass_passes_by(hooks_); }

}  // namespace gradwire::internal
