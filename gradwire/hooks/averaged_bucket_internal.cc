// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/hooks/averaged_bucket_internal.h"

#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"

namespace gradwire::internal {

GradBucket averaged_bucket(CommHook& inner, const GradBucket& bucket) {
  GradBucket averaged = bucket;
  at::Tensor result = result_of(inner, averaged);
  const at::ScalarType type = bucket.layout().dtype;
  if (result.defined() && result.scalar_type() != type && result.scalar_type() == bucket.buffer().scalar_type()) {
    throw InvalidArgument(concat("The optimizer that steps in a hook got the averages of bucket ", bucket.index(),
                                 " as ", result.scalar_type(), ", and its parameters are ", type,
                                 ": a wrapper such as fp16_compress lies around the hook that steps. Put the wrapper "
                                 "inside: the hook that steps takes the wrapped hook."));
  }
  if (!result.defined() || result.scalar_type() != type) {
    throw InvalidArgument(concat("The hook '", inner.traits().name, "' must return a tensor of ", type, " for bucket ",
                                 bucket.index(), "."));
  }
  averaged.set_buffer(std::move(result));
  return averaged;
}

}  // namespace gradwire::internal
