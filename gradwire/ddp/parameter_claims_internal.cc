// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/ddp/parameter_claims_internal.h"

#include <map>

#include "gradwire/base/mutex.h"

namespace gradwire::internal {
namespace {

class Owners {
 public:
  // Never destroyed: DDP objects in static variables may go late.
  static Owners& of_process() {
    static auto* const owners = std::make_unique<Owners>().release();
    return *owners;
  }

  std::shared_ptr<std::atomic<int>> add(const at::Tensor& parameter) {
    MutexLock lock(mutex_);
    std::shared_ptr<std::atomic<int>>& count = counts_[parameter.unsafeGetTensorImpl()];
    if (count == nullptr) count = std::make_shared<std::atomic<int>>(0);
    ++*count;
    return count;
  }

  void remove(const at::Tensor& parameter) {
    MutexLock lock(mutex_);
    const auto found = counts_.find(parameter.unsafeGetTensorImpl());
    if (found != counts_.end() && --*found->second == 0) counts_.erase(found);
  }

 private:
  Mutex mutex_;
  std::map<const c10::TensorImpl*, std::shared_ptr<std::atomic<int>>> counts_ GRADWIRE_GUARDED_BY(mutex_);
};

}  // namespace

ParameterClaims::ParameterClaims(const std::vector<NamedTensor>& parameters) {
  parameters_.reserve(parameters.size());
  owners_.reserve(parameters.size());
  try {
    for (const NamedTensor& parameter : parameters) {
      owners_.push_back(Owners::of_process().add(parameter.tensor));
      parameters_.push_back(parameter.tensor);
    }
  } catch (...) {
    release();
    throw;
  }
}

void ParameterClaims::release() noexcept {
  if (!process_.is_current()) return;
  for (const at::Tensor& parameter : parameters_) Owners::of_process().remove(parameter);
  parameters_.clear();
}

}  // namespace gradwire::internal
