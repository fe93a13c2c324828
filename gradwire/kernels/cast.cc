// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/kernels/cast.h"

#include "gradwire/base/copy.h"
#include "gradwire/kernels/dispatch_internal.h"

namespace gradwire::kernels {
namespace {

void run(const CastCall& call, std::size_t count) noexcept {
  if (count == 0) return;
  const std::size_t done = active().cast(call, 0, count);
  if (done < count) cast_scalar(call, done, count);
}

}  // namespace

void cast(DType from, const void* source, DType to, void* destination, std::size_t count) noexcept {
  if (from == to) {
    copy_bytes(destination, source, count * size_of(from));
    return;
  }
  run({from, source, to, destination, false, 1.0}, count);
}

void cast_scaled(DType from, const void* source, DType to, void* destination, std::size_t count,
                 double factor) noexcept {
  run({from, source, to, destination, true, factor}, count);
}

}  // namespace gradwire::kernels
