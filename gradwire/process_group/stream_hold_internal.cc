// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/process_group/stream_hold_internal.h"

#include <ATen/Context.h>

#include <string>
#include <utility>

namespace gradwire::internal {
namespace {

constexpr const char* kCuda = "CUDA";
constexpr Milliseconds kForEver{0};

}  // namespace

bool current_stream_can_wait() noexcept { return at::hasCUDA() && c10d::cuda::StreamBlockRegistry()->Has(kCuda); }

bool hold_current_stream(const Future& future) {
  return hold_current_stream(future, [] {
    return std::shared_ptr<c10d::cuda::StreamBlock>(c10d::cuda::StreamBlockRegistry()->Create(kCuda, kForEver));
  });
}

bool hold_current_stream(const Future& future,
                         const std::function<std::shared_ptr<c10d::cuda::StreamBlock>()>& hold_up) {
  if (future->completed()) return false;
  std::shared_ptr<c10d::cuda::StreamBlock> block = hold_up();
  future->addCallback([block = std::move(block)](c10::ivalue::Future&) { block->abort(); }, /*uses_future=*/false);
  return true;
}

}  // namespace gradwire::internal
