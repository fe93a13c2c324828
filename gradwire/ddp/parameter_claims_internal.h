// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Which parameters several DDP objects of this process average.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstddef>
#include <memory>
#include <vector>

#include "gradwire/base/process.h"
#include "gradwire/ddp/replica_sync_internal.h"

namespace gradwire::internal {

// While an object exists, each of its parameters has one more owner. Objects may be made and destroyed on any thread.
class ParameterClaims final {
 public:
  explicit ParameterClaims(const std::vector<NamedTensor>& parameters);
  ~ParameterClaims() { release(); }
  ParameterClaims(const ParameterClaims&) = delete;
  ParameterClaims& operator=(const ParameterClaims&) = delete;

  // Gives the parameters up. Afterwards is_shared() must not be called.
  void release() noexcept;
  // Whether the parameter with this number has another owner, too. Any thread.
  bool is_shared(std::size_t parameter) const noexcept { return owners_[parameter]->load() > 1; }

 private:
  const OwnerProcess process_;          // a forked child may have copied the lock of all owners while it was held
  std::vector<at::Tensor> parameters_;  // kept, so that no other tensor gets their addresses
  std::vector<std::shared_ptr<std::atomic<int>>> owners_;
};

}  // namespace gradwire::internal
