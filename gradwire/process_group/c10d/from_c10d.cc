// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/process_group/c10d/from_c10d.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "gradwire/process_group/c10d/c10d_store.h"
#include "gradwire/process_group/c10d/engine_traits_internal.h"
#include "gradwire/process_group/c10d/group_over_c10d_internal.h"
#include "gradwire/process_group/c10d/process_group_backend_internal.h"
#include "gradwire/process_group/c10d/to_c10d.h"
#include "gradwire/process_group/device_group_internal.h"
#include "gradwire/process_group/init.h"
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

// The time limit that the calls of `backend` have, where it tells one.
std::optional<Milliseconds> timeout_of(c10d::Backend& backend) {
  try {
    const auto options = backend.getBackendOptions();
    if (options && options->timeout > Milliseconds::zero()) return options->timeout;
  } catch (const c10::Error&) {
    // A class of a user's, which has no options.
  }
  return std::nullopt;
}

// The same of the backend that serves the CPU, or else the first device.
std::optional<Milliseconds> timeout_of(c10d::ProcessGroup& group) {
  const auto devices = group.getDeviceTypes();
  const auto cpu = std::find_if(devices.begin(), devices.end(), [](const c10::Device& each) { return each.is_cpu(); });
  if (devices.empty()) return std::nullopt;
  return timeout_of(*group.getBackend((cpu == devices.end() ? devices.front() : *cpu).type()));
}

// The kind of device that the group serves; the CPU where it serves no other.
c10::DeviceType device_of(const c10d::ProcessGroup& group) {
  for (const c10::Device& device : group.getDeviceTypes()) {
    if (!device.is_cpu()) return device.type();
  }
  return c10::DeviceType::CPU;
}

// Makes further engines for splits of a group whose first engine is `backend`.
internal::DeviceGroup::Maker maker_of(c10::intrusive_ptr<c10d::Backend> backend, const C10dFactory& factory) {
  auto first = std::make_shared<c10::intrusive_ptr<c10d::Backend>>(std::move(backend));
  return [first, factory](const std::shared_ptr<Store>& place, int rank, int size, Milliseconds timeout) {
    FromC10dOptions options;
    options.store = std::make_shared<PrefixStore>("group", place);
    options.factory = factory;
    options.unwrap = false;
    if (*first) return from_c10d(std::exchange(*first, nullptr), options);
    if (!factory) {
      throw UnsupportedError(
          "split: the group was made by from_c10d() without a factory, so no further engine can be made for tensors on "
          "a device; set FromC10dOptions::factory, or split the group before from_c10d()");
    }
    return from_c10d(factory(store_to_c10d(std::make_shared<PrefixStore>("engine", place)), rank, size, timeout),
                     options);
  };
}

}  // namespace

std::shared_ptr<ProcessGroup> from_c10d(c10::intrusive_ptr<c10d::Backend> backend, const FromC10dOptions& options) {
  if (!backend) throw InvalidArgument("from_c10d: the backend is null");
  if (options.unwrap) {
    if (auto group = group_under(backend)) return group;
  }
  const std::string name = backend->getGroupUid();
  const std::string desc = backend->getGroupDesc();
  const std::optional<Milliseconds> timeout = timeout_of(*backend);
  internal::EngineMaker maker;
  if (options.factory) {
    maker = [factory = options.factory](const internal::EngineMeeting& meeting) {
      return factory(store_to_c10d(meeting.store), meeting.rank, meeting.size, meeting.timeout);
    };
  }
  auto group =
      std::make_shared<internal::GroupOverC10d>(std::move(backend), options.store, std::move(maker), options.processes);
  if (timeout) group->set_timeout(*timeout);
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
  const std::optional<Milliseconds> timeout = timeout_of(*group);
  std::shared_ptr<ProcessGroup> made;
  if (!internal::traits_of(backend->getBackendName()).serves_cpu && settled.store != nullptr) {
    auto cpu = make_process_group("auto", std::make_shared<PrefixStore>("cpu", settled.store), group->getRank(),
                                  group->getSize(), timeout.value_or(kDefaultTimeout));
    made = std::make_shared<internal::DeviceGroup>(std::move(cpu), device_of(*group), settled.store,
                                                   maker_of(std::move(backend), settled.factory));
  } else {
    made = from_c10d(std::move(backend), settled);
  }
  if (timeout) made->set_timeout(*timeout);
  made->set_group_name(name_of(*group));
  made->set_group_desc(group->getGroupDesc());
  return made;
}

}  // namespace gradwire
