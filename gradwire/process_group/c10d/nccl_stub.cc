// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Stands for nccl.cc where libtorch has no CUDA, or the headers of CUDA and NCCL are missing.
#include "gradwire/base/error.h"
#include "gradwire/process_group/c10d/nccl_internal.h"

namespace gradwire::internal {

bool nccl_is_built() noexcept { return false; }

void require_nccl() {
  throw UnsupportedError(
      "this gradwire was built without NCCL, because its torch has no CUDA or the headers of CUDA and NCCL were not "
      "there; build it against a CUDA build of torch (GRADWIRE_TORCH_DIR, and GRADWIRE_CUDA=ON, which says what is "
      "missing), or use the backend 'auto' with tensors on the CPU");
}

c10::intrusive_ptr<c10d::Backend> make_nccl(const c10::intrusive_ptr<c10d::Store>&, int, int, Milliseconds,
                                            c10::Device) {
  require_nccl();
  return {};
}

}  // namespace gradwire::internal
