// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/ddp/parameter_hooks_internal.h"

#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"

namespace gradwire::internal {

void ParameterHooks::attach(const BucketStore& store) { hooks_.attach(store.parameters(), on_gradient_); }

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
    if (!hooks_.is_of(i, store.parameter(i))) return attach(store);
  }
}

}  // namespace gradwire::internal
