// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/process_group/user_backends.h"

#include <map>
#include <utility>

#include "gradwire/base/error.h"
#include "gradwire/base/mutex.h"
#include "gradwire/base/strings.h"
#include "gradwire/process_group/user_backends_internal.h"

namespace gradwire::internal {
namespace {

struct UserBackends {
  Mutex mutex;
  std::map<std::string, GroupFactory> factories GRADWIRE_GUARDED_BY(mutex);
};

UserBackends& user_backends() {
  static UserBackends instance;
  return instance;
}

}  // namespace

void add_user_backend(const std::string& name, GroupFactory factory) {
  if (name.empty()) throw InvalidArgument("register_backend: the name is empty");
  if (!factory) throw InvalidArgument(concat("register_backend: the factory of '", name, "' is null"));
  UserBackends& backends = user_backends();
  MutexLock lock(backends.mutex);
  backends.factories[name].swap(factory);
  lock.unlock();  // the factory of before goes without the lock: its end may run code of the user's
}

std::vector<std::string> user_backend_names() {
  UserBackends& backends = user_backends();
  MutexLock lock(backends.mutex);
  std::vector<std::string> names;
  for (const auto& [name, factory] : backends.factories) names.push_back(name);
  return names;
}

GroupFactory user_backend(const std::string& name) {
  UserBackends& backends = user_backends();
  MutexLock lock(backends.mutex);
  const auto found = backends.factories.find(name);
  return found == backends.factories.end() ? GroupFactory() : found->second;
}

std::shared_ptr<ProcessGroup> make_user_group(const std::string& name, const GroupFactory& factory,
                                              std::shared_ptr<Store> store, int rank, int size, Milliseconds timeout) {
  auto group = factory(std::move(store), rank, size, timeout);
  if (group == nullptr) throw InvalidArgument(concat("the backend '", name, "' made no group"));
  if (group->rank() != rank || group->size() != size) {
    throw InvalidArgument(concat("the backend '", name, "' made a group that is rank ", group->rank(), " of ",
                                 group->size(), " where it was asked for rank ", rank, " of ", size));
  }
  group->set_timeout(timeout);
  return group;
}

}  // namespace gradwire::internal
