// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include <torch/nn/modules/container/any.h>
#include <torch/nn/modules/container/moduledict.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/container/sequential.h>

#include <map>
#include <set>
#include <string>
#include <vector>

#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "gradwire/nn/sync_batch_norm.h"

namespace gradwire {
namespace {

using ModulePtr = std::shared_ptr<torch::nn::Module>;

bool is_batch_norm(const torch::nn::Module& module) {
  return module.as<torch::nn::BatchNorm1dImpl>() != nullptr || module.as<torch::nn::BatchNorm2dImpl>() != nullptr ||
         module.as<torch::nn::BatchNorm3dImpl>() != nullptr;
}

// The SyncBatchNorm for `module`, or null where it is no BatchNorm.
std::shared_ptr<SyncBatchNormImpl> replacement_of(const torch::nn::Module& module,
                                                  const std::shared_ptr<ProcessGroup>& group) {
  if (const auto* one = module.as<torch::nn::BatchNorm1dImpl>())
    return std::make_shared<SyncBatchNormImpl>(*one, group);
  if (const auto* two = module.as<torch::nn::BatchNorm2dImpl>())
    return std::make_shared<SyncBatchNormImpl>(*two, group);
  if (const auto* three = module.as<torch::nn::BatchNorm3dImpl>())
    return std::make_shared<SyncBatchNormImpl>(*three, group);
  return nullptr;
}

// Makes `use` of the place of `child` among the elements of `parent`, the registered children left aside; whether there
// is one.
template <class Container, class Held, class Use>
bool find_element(torch::nn::Module& parent, const ModulePtr& child, const Held& held, const Use& use) {
  auto* container = parent.as<Container>();
  if (container == nullptr) return false;
  bool found = false;
  for (auto element = container->begin(); element != container->end(); ++element) {
    if (held(*element) != child) continue;
    found = true;
    use(*element);
  }
  return found;
}

// Puts `sync`, if there is one, in the place of `child`; whether there is a place that takes effect.
bool replace_element(torch::nn::Module& parent, const ModulePtr& child,
                     const std::shared_ptr<SyncBatchNormImpl>& sync) {
  const auto itself = [](const ModulePtr& element) { return element; };
  return find_element<torch::nn::SequentialImpl>(
             parent, child, [](const torch::nn::AnyModule& any) { return any.ptr(); },
             [&](torch::nn::AnyModule& any) {
               if (sync != nullptr) any = torch::nn::AnyModule(sync);
             }) ||
         find_element<torch::nn::ModuleListImpl>(parent, child, itself,
                                                 [&](ModulePtr& element) {
                                                   if (sync != nullptr) element = sync;
                                                 }) ||
         find_element<torch::nn::ModuleDictImpl>(
             parent, child, [](const auto& item) { return item.value(); },
             [&](auto& item) {
               if (sync != nullptr) item.value() = sync;
             });
}

struct Place {
  ModulePtr parent;
  std::string name;
  ModulePtr child;
};

class Conversion {
 public:
  explicit Conversion(std::shared_ptr<ProcessGroup> group) : group_(std::move(group)) {}

  void collect(const ModulePtr& module, const std::string& path) {
    if (!seen_.insert(module.get()).second) return;
    if (auto* sync = module->as<SyncBatchNormImpl>()) there_already_.push_back(sync);
    for (const auto& item : module->named_children()) {
      const ModulePtr& child = item.value();
      const std::string child_path = path.empty() ? item.key() : concat(path, '.', item.key());
      if (!is_batch_norm(*child)) {
        collect(child, child_path);
      } else if (replace_element(*module, child, nullptr)) {
        places_.push_back({module, item.key(), child});
      } else {
        fixed_.push_back(child_path);
      }
    }
  }

  void apply() {
    if (!fixed_.empty()) {
      std::string names;
      for (const std::string& path : fixed_) names += concat(names.empty() ? "'" : ", '", path, "'");
      throw InvalidArgument(concat("convert_sync_batchnorm: ", names,
                                   " is a BatchNorm in a class of its own, which C++ calls by its type; declare it as "
                                   "gradwire::SyncBatchNorm there, or put it into a torch::nn::Sequential"));
    }
    // A layer that stands in two places stays one layer.
    std::map<const torch::nn::Module*, std::shared_ptr<SyncBatchNormImpl>> made;
    for (const Place& place : places_) {
      auto& sync = made[place.child.get()];
      if (sync == nullptr) sync = replacement_of(*place.child, group_);
      replace_element(*place.parent, place.child, sync);
      place.parent->replace_module(place.name, sync);
    }
    for (SyncBatchNormImpl* sync : there_already_) sync->set_process_group(group_);
  }

 private:
  std::shared_ptr<ProcessGroup> group_;
  std::set<const torch::nn::Module*> seen_;
  std::vector<Place> places_;
  std::vector<SyncBatchNormImpl*> there_already_;
  std::vector<std::string> fixed_;
};

}  // namespace

std::shared_ptr<torch::nn::Module> convert_sync_batchnorm(const std::shared_ptr<torch::nn::Module>& module,
                                                          const std::shared_ptr<ProcessGroup>& group) {
  if (module == nullptr) throw InvalidArgument("convert_sync_batchnorm: there is no module");
  if (auto sync = replacement_of(*module, group)) return sync;
  Conversion conversion(group);
  conversion.collect(module, "");
  conversion.apply();
  return module;
}

}  // namespace gradwire
