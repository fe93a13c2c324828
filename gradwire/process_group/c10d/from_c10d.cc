// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/process_group/c10d/from_c10d.h"

#include <set>
#include <utility>

#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "gradwire/process_group/c10d/c10d_store.h"
#include "gradwire/process_group/c10d/group_over_c10d_internal.h"
#include "gradwire/process_group/c10d/process_group_backend_internal.h"
#include "gradwire/process_group/c10d/to_c10d.h"
#include "gradwire/store/prefix_store.h"

namespace gradwire {
namespace {

// The one backend that serves all devices of the group; null where there are several, or none (a group whose class
// overrides the calls themselves).
c10::intrusive_ptr<c10d::Backend> only_backend(c10d::ProcessGroup& group) {
  std::set<c10d::Backend*> distinct;
  c10::intrusive_ptr<c10d::Backend> backend;
  for (const c10::Device& device : group.getDeviceTypes()) {
    backend = group.getBackend(device.type());
    distinct.insert(backend.get());
  }
  return distinct.size() == 1 ? backend : nullptr;
}

// Torch refuses to name a group that nobody named.
std::string name_of(const c10d::ProcessGroup& group) {
  try {
    return group.getGroupName();
  } catch (const c10::Error&) {
    return "";
  }
}

// A part of the group's store that no other wrapper of the store uses. Each rank counts its wrappers, and all make
// them in the same order.
std::shared_ptr<Store> part_of_store(const c10d::ProcessGroup& group) {
  const c10::intrusive_ptr<c10d::Store> store = group.getStore();
  if (!store) return nullptr;
  auto ours = store_from_c10d(store);
  const std::string base = concat("gradwire/", name_of(group), "/");
  const std::int64_t number = ours->add(concat(base, "wrappers/", group.getRank()), 1);
  return std::make_shared<PrefixStore>(concat(base, number), std::move(ours));
}

}  // namespace

std::shared_ptr<ProcessGroup> from_c10d(c10::intrusive_ptr<c10d::Backend> backend, const FromC10dOptions& options) {
  if (!backend) throw InvalidArgument("from_c10d: the backend is null");
  if (options.unwrap) {
    if (auto group = group_under(backend)) return group;
  }
  const std::string name = backend->getGroupUid();
  const std::string desc = backend->getGroupDesc();
  auto group =
      std::make_shared<internal::GroupOverC10d>(std::move(backend), options.store, options.factory, options.processes);
  group->set_group_name(name);
  group->set_group_desc(desc);
  return group;
}

std::shared_ptr<ProcessGroup> from_c10d(const c10::intrusive_ptr<c10d::ProcessGroup>& group,
                                        const FromC10dOptions& options) {
  if (!group) throw InvalidArgument("from_c10d: the group is null");
  c10::intrusive_ptr<c10d::Backend> backend = only_backend(*group);
  if (backend && options.unwrap) {
    if (auto ours = group_under(backend)) return ours;
  }
  if (!backend) backend = c10::make_intrusive<internal::ProcessGroupBackend>(group);
  FromC10dOptions settled = options;
  if (settled.store == nullptr) settled.store = part_of_store(*group);
  auto made = from_c10d(std::move(backend), settled);
  made->set_group_name(name_of(*group));
  made->set_group_desc(group->getGroupDesc());
  return made;
}

}  // namespace gradwire
