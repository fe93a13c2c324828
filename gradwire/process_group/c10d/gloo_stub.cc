// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Stands for gloo.cc where Gloo's headers are missing.
#include "gradwire/base/error.h"
#include "gradwire/process_group/c10d/gloo_internal.h"

namespace gradwire::internal {

bool gloo_is_built() noexcept { return false; }

c10::intrusive_ptr<c10d::Backend> make_gloo(const c10::intrusive_ptr<c10d::Store>&, int, int, Milliseconds) {
  throw UnsupportedError(
      "this gradwire was built without Gloo, because Gloo's headers were not there; install them (Debian: libgloo-dev) "
      "and build again, or use the backend 'shm' on one host");
}

}  // namespace gradwire::internal
