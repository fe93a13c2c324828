// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/ddp/run_hook_internal.h"

#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"

namespace gradwire::internal {

Future start_hook(CommHook& hook, GradBucket& bucket) {
  Future future = hook.run(bucket);
  if (!future) throw InvalidArgument(concat("The hook '", hook.traits().name, "' returned a null future."));
  return future;
}

at::Tensor run_hook(CommHook& hook, GradBucket& bucket) {
  const Future future = start_hook(hook, bucket);
  future->waitAndThrow();
  return tensor_of(*future);
}

}  // namespace gradwire::internal
