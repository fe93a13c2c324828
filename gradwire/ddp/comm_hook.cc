// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/ddp/comm_hook.h"

#include <ATen/core/jit_type.h>

#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"

namespace gradwire {

void CommHook::load_state_dict(const HookState& state) {
  if (state.empty()) return;
  throw InvalidArgument(concat("The hook '", traits_.name, "' has no memory, but the state to load has ", state.size(),
                               " values, the first is '", state.begin()->first, "'; it was saved by another hook."));
}

at::Tensor tensor_of(c10::ivalue::Future& future) {
  if (future.hasError()) std::rethrow_exception(future.exception_ptr());
  const c10::IValue& value = future.constValue();
  if (value.isTensor()) return value.toTensor();
  if (value.isTensorList()) {
    const auto tensors = value.toTensorList();
    if (tensors.size() == 1) return tensors.get(0);
    throw InvalidArgument(
        concat("A future of one tensor was expected; it holds a list of ", tensors.size(), " tensors."));
  }
  if (value.isList()) {
    const auto values = value.toListRef();
    if (values.size() == 1 && values[0].isTensor()) return values[0].toTensor();
  }
  throw InvalidArgument(concat("A future of one tensor was expected; it holds a value of type ", value.tagKind(), "."));
}

Future run_hook(CommHook& hook, GradBucket& bucket) {
  Future future = hook.run(bucket);
  if (!future) throw InvalidArgument(concat("The hook '", hook.traits().name, "' returned a null future."));
  return future;
}

at::Tensor result_of(CommHook& hook, GradBucket& bucket) {
  const Future future = run_hook(hook, bucket);
  work_from_future(future)->wait();
  return tensor_of(*future);
}

Future tensor_future(const std::shared_ptr<Work>& collective) {
  Future future = collective->future();
  return future->then(
      // Keeps the Work until it ends: a user's group may not hold it.
      [collective](c10::ivalue::Future& done) { return c10::IValue(tensor_of(done)); }, c10::TensorType::get());
}

}  // namespace gradwire
