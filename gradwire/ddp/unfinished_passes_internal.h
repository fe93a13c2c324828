// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// For optimizers whose step communicates: whether DDP still waits for gradients of the parameters. Ranks whose passes
// have gradients for all parameters wait in DDP's groups then, and a rank in the step waits for these ranks.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "gradwire/base/process.h"
#include "gradwire/ddp/replica_sync_internal.h"

namespace gradwire::internal {

// What averages gradients.
class PassOwner {
 public:
  virtual ~PassOwner() = default;
  // Throws InvalidArgument, and tells the other ranks, when a synchronized backward pass has ended and gradients are
  // missing. Does nothing within a backward pass, and in a hook. `before`: what would come next, for the other ranks.
  virtual void require_pass_ended(const std::string& before) = 0;
};

// While an object exists, require_passes_ended() asks `owner` about `parameters`. Objects may be made and destroyed on
// any thread.
class PassRegistration final {
 public:
  PassRegistration(const std::vector<NamedTensor>& parameters, const std::shared_ptr<PassOwner>& owner);
  ~PassRegistration();
  PassRegistration(const PassRegistration&) = delete;
  PassRegistration& operator=(const PassRegistration&) = delete;

 private:
  const OwnerProcess process_;                 // a forked child may have copied the registry's lock while it was held
  const std::vector<NamedTensor> parameters_;  // kept, so that no other tensor gets their addresses
};

// PassOwner::require_pass_ended() of all owners of `parameters`.
void require_passes_ended(const std::vector<at::Tensor>& parameters, const std::string& before);

}  // namespace gradwire::internal
