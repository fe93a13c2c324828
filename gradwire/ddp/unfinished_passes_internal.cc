// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/ddp/unfinished_passes_internal.h"

#include <map>
#include <set>

#include "gradwire/base/mutex.h"

namespace gradwire::internal {
namespace {

// Of this process. `by` tells the registrations of one parameter apart.
class Registry {
 public:
  // Never destroyed: DDP objects in static variables may go late.
  static Registry& of_process() {
    static auto* const registry = std::make_unique<Registry>().release();
    return *registry;
  }

  void add(const void* by, const std::vector<NamedTensor>& parameters, const std::weak_ptr<PassOwner>& owner) {
    MutexLock lock(mutex_);
    for (const NamedTensor& parameter : parameters) owners_[{parameter.tensor.unsafeGetTensorImpl(), by}] = owner;
  }

  void remove(const void* by, const std::vector<NamedTensor>& parameters) noexcept {
    MutexLock lock(mutex_);
    for (const NamedTensor& parameter : parameters) owners_.erase({parameter.tensor.unsafeGetTensorImpl(), by});
  }

  std::set<std::shared_ptr<PassOwner>> owners_of(const std::vector<at::Tensor>& parameters) {
    std::set<std::shared_ptr<PassOwner>> found;
    MutexLock lock(mutex_);
    for (const at::Tensor& parameter : parameters) {
      const c10::TensorImpl* const key = parameter.unsafeGetTensorImpl();
      for (auto entry = owners_.lower_bound({key, nullptr}); entry != owners_.end() && entry->first.first == key;
           ++entry) {
        if (auto owner = entry->second.lock()) found.insert(std::move(owner));
      }
    }
    return found;
  }

 private:
  Mutex mutex_;
  std::map<std::pair<const c10::TensorImpl*, const void*>, std::weak_ptr<PassOwner>> owners_
      GRADWIRE_GUARDED_BY(mutex_);
};

}  // namespace

PassRegistration::PassRegistration(const std::vector<NamedTensor>& parameters, const std::shared_ptr<PassOwner>& owner)
    : parameters_(parameters) {
  Registry::of_process().add(this, parameters_, owner);
}

PassRegistration::~PassRegistration() {
  if (process_.is_current()) Registry::of_process().remove(this, parameters_);
}

void require_passes_ended(const std::vector<at::Tensor>& parameters, const std::string& before) {
  for (const auto& owner : Registry::of_process().owners_of(parameters)) owner->require_pass_ended(before);
}

}  // namespace gradwire::internal
