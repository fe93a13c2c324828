// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/hooks/averaged_bucket_internal.h"

#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"

namespace gradwire::internal {

GradBucket averaged_bucket(CommHook& inner, const GradBucket& bucket) {
  GradBucket averaged = bucket;
  at::Tensor result = result_of(inner, averaged);
  if (!result.defined() || result.scalar_type() != bucket.layout().dtype) {
    throw InvalidArgument(concat("The hook '", inner.traits().name, "' must return a tensor of ", bucket.layout().dtype,
                                 " for bucket ", bucket.index(), "."));
  }
  averaged.set_buffer(std::move(result));
  return averaged;
}

}  // namespace gradwire::internal
