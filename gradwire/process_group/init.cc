// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/process_group/init.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <exception>
#include <map>
#include <numeric>
#include <optional>
#include <utility>

#include "gradwire/backend/job/meet_internal.h"
#include "gradwire/base/error.h"
#include "gradwire/base/log.h"
#include "gradwire/base/mutex.h"
#include "gradwire/base/process.h"
#include "gradwire/base/stable_hash.h"
#include "gradwire/base/strings.h"
#include "gradwire/process_group/backend_names_internal.h"
#include "gradwire/process_group/ends_with_group_internal.h"
#include "gradwire/process_group/first_places_internal.h"
#include "gradwire/process_group/make_group_internal.h"
#include "gradwire/process_group/shut_down_internal.h"
#include "gradwire/store/prefix_store.h"

namespace gradwire {
namespace {

// Everything between init_process_group and destroy_process_group. Members go in the reverse order: groups before what
// they meet in.
struct World {
  OwnerProcess owner;
  internal::Meeting meeting;
  std::string backend;
  std::optional<at::Device> device;
  std::shared_ptr<ProcessGroup> group;
  Mutex mutex;
  std::uint64_t groups_made GRADWIRE_GUARDED_BY(mutex) = 0;
  // Calls of new_group_among() by the ranks that they named.
  std::map<std::string, std::uint64_t> made_among GRADWIRE_GUARDED_BY(mutex);
  std::vector<std::shared_ptr<ProcessGroup>> groups GRADWIRE_GUARDED_BY(mutex);
  std::shared_ptr<Store> for_program GRADWIRE_GUARDED_BY(mutex);  // default_store(), once asked for
};

// The world of this process. destroy_process_group() empties it.
struct ProcessWorld {
  Mutex mutex;
  std::shared_ptr<World> world GRADWIRE_GUARDED_BY(mutex);
};

ProcessWorld& process_world() {
  static ProcessWorld instance;
  return instance;
}

// The world of a rank that is a thread.
thread_local std::shared_ptr<World> thread_world;

constexpr const char* kThreads = "threads";

// The world that calls of this thread mean; null when there is none. One that a forked child inherited is none of its
// own.
std::shared_ptr<World> current_world() {
  if (thread_world != nullptr && thread_world->owner.is_current()) return thread_world;
  ProcessWorld& process = process_world();
  MutexLock lock(process.mutex);
  return process.world != nullptr && process.world->owner.is_current() ? process.world : nullptr;
}

std::shared_ptr<World> require_world(const char* operation) {
  std::shared_ptr<World> world = current_world();
  if (world == nullptr) {
    throw InvalidArgument(concat(
        operation,
        ": there is no default group in this process; call init_process_group() first (a forked child and, with the "
        "backend 'threads', each thread needs its own)"));
  }
  return world;
}

internal::MeetingOptions meeting_options(const InitOptions& options) {
  internal::MeetingOptions meeting;
  meeting.method = options.method;
  meeting.store = options.store;
  meeting.rank = options.rank;
  meeting.world_size = options.world_size;
  meeting.timeout = options.timeout;
  return meeting;
}

std::shared_ptr<Store> sub_store(const World& world, const std::string& prefix) {
  return std::make_shared<PrefixStore>(prefix, world.meeting.membership->store());
}

// Of a group with the backend `name`: a job on CUDA may have groups of others, for tensors on the CPU.
std::optional<at::Device> device_for(const World& world, const std::string& name) {
  return name == internal::kNccl || name == internal::kAuto ? world.device : std::nullopt;
}

// "0,2,3": as ranks compare it.
std::string spell(const std::vector<int>& ranks, const std::string& backend) {
  return concat(backend, ":", join(ranks, ","));
}

void check_ranks(const char* operation, const std::vector<int>& ranks, int world_size) {
  std::vector<int> sorted = ranks;
  std::sort(sorted.begin(), sorted.end());
  if (std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end()) {
    throw InvalidArgument(concat(operation, ": a rank is named twice in ", join(ranks)));
  }
  if (sorted.front() < 0 || sorted.back() >= world_size) {
    throw InvalidArgument(concat(operation, ": the ranks ", join(ranks),
                                 " are not all in the default group, whose ranks are 0 to ", world_size - 1));
  }
}

// What a call that makes a group asks for.
struct Asked {
  const char* operation;
  std::vector<int> ranks;  // of the default group
  std::string backend;     // its name
  std::string desc;
  Milliseconds timeout;
};

// Throws InvalidArgument for what no group can be.
Asked asked_of(const World& world, const char* operation, const std::vector<int>& ranks, const std::string& backend,
               const std::string& desc, Milliseconds timeout) {
  Asked asked{.operation = operation,
              .ranks = ranks,
              .backend = {},
              .desc = desc,
              .timeout = timeout.count() == 0 ? world.group->timeout() : timeout};
  if (ranks.empty()) {
    asked.ranks.resize(static_cast<std::size_t>(world.meeting.place.world_size));
    std::iota(asked.ranks.begin(), asked.ranks.end(), 0);
  }
  check_ranks(operation, asked.ranks, world.meeting.place.world_size);
  if (timeout.count() < 0) {
    throw InvalidArgument(concat(operation, ": a timeout of ", timeout.count(),
                                 " ms; give a positive one, or 0 for the default group's"));
  }
  asked.backend = backend.empty() ? world.backend : internal::resolve_backend(backend);
  return asked;
}

// This rank's number among `ranks`; nothing when it is not one of them.
std::optional<int> place_among(const World& world, const std::vector<int>& ranks) {
  const auto place = std::find(ranks.begin(), ranks.end(), world.meeting.place.rank);
  if (place == ranks.end()) return std::nullopt;
  return static_cast<int>(place - ranks.begin());
}

// The group of those ranks, whose rank `place` is this one, and which meet in `store` by `deadline`. The world keeps
// it.
std::shared_ptr<ProcessGroup> add_group(World& world, const Asked& asked, Deadline deadline, int place,
                                        std::shared_ptr<Store> store, std::string name, bool is_registered) {
  auto group = internal::make_group_by(deadline.earlier(Deadline::after(asked.timeout)), asked.backend,
                                       std::move(store), place, static_cast<int>(asked.ranks.size()), asked.timeout,
                                       device_for(world, asked.backend), is_registered);
  group->set_group_name(std::move(name));
  group->set_group_desc(asked.desc);
  internal::open_record(*group);
  MutexLock lock(world.mutex);
  world.groups.push_back(group);
  return group;
}

// Throws MismatchError on all ranks unless all have come with the same `asked`. Through the default group, so that a
// rank which died is noticed.
void require_agreement(World& world, const std::string& asked) {
  const auto mine = static_cast<std::int64_t>(stable_hash(asked));
  Tensors all;
  for (int rank = 0; rank < world.meeting.place.world_size; ++rank)
    all.push_back(at::zeros({1}, at::TensorOptions(at::kLong)));
  AllGatherOptions options;
  options.async = false;
  world.group->all_gather({all}, {at::full({1}, mine, at::TensorOptions(at::kLong))}, options)->wait();
  std::vector<int> others;
  for (int rank = 0; rank < world.meeting.place.world_size; ++rank) {
    if (all[static_cast<std::size_t>(rank)].item<std::int64_t>() != mine) others.push_back(rank);
  }
  if (others.empty()) return;
  throw MismatchError(concat("new_group: rank ", world.meeting.place.rank, " asked for the ranks ", asked, "; ",
                             name_ranks(others),
                             " asked for something else; all ranks must ask for the same groups in the same order"));
}

// Shuts all groups down; returns the first error.
std::exception_ptr end(World& world) {
  std::vector<std::shared_ptr<ProcessGroup>> groups;
  {
    MutexLock lock(world.mutex);
    groups.swap(world.groups);
  }
  groups.push_back(world.group);
  return internal::shut_down_all(groups);
}

}  // namespace

std::shared_ptr<ProcessGroup> init_process_group(const InitOptions& options) {
  if (current_world() != nullptr) {
    throw InvalidArgument(
        "init_process_group: the default group is initialised already; call destroy_process_group() first");
  }
  if (options.timeout.count() <= 0) {
    throw InvalidArgument(
        concat("init_process_group: a timeout of ", options.timeout.count(), " ms; give a positive one"));
  }
  const Deadline deadline = Deadline::after(options.timeout);
  auto world = std::make_shared<World>();
  world->backend = internal::resolve_backend(options.backend);
  world->meeting = internal::meet(meeting_options(options), options.group_name, internal::first_places("default"));
  world->device = options.device_id;
  const auto make_group = [&] {
    return internal::make_group_by(deadline, world->backend, sub_store(*world, "default"), world->meeting.place.rank,
                                   world->meeting.place.world_size, options.timeout, world->device,
                                   /*is_registered=*/true);
  };
  world->group = internal::heard_by_all(*world->meeting.membership, make_group);
  world->group->set_group_name(options.group_name.empty() ? "default" : options.group_name);
  if (world->backend == kThreads) {
    thread_world = world;
    return world->group;
  }
  std::shared_ptr<World> inherited;  // of a parent process; goes outside of the lock
  ProcessWorld& process = process_world();
  MutexLock lock(process.mutex);
  if (process.world != nullptr && process.world->owner.is_current()) {
    throw InvalidArgument(
        "init_process_group: another thread of this process initialised the default group at the same time");
  }
  inherited = std::exchange(process.world, world);
  lock.unlock();
  log::set_rank(world->meeting.place.rank);
  return world->group;
}

bool is_initialized() { return current_world() != nullptr; }

bool is_available() { return true; }

std::shared_ptr<ProcessGroup> default_group() { return require_world("default_group")->group; }

std::shared_ptr<Store> default_store() {
  const std::shared_ptr<World> world = require_world("default_store");
  {
    MutexLock lock(world->mutex);
    if (world->for_program != nullptr) return world->for_program;
  }
  std::shared_ptr<Store> store = sub_store(*world, "program");
  try {
    store = store->clone();  // the program's timeouts are its own
  } catch (const UnsupportedError&) {
  }
  store->set_timeout(world->group->timeout());
  MutexLock lock(world->mutex);
  if (world->for_program == nullptr) world->for_program = std::move(store);
  return world->for_program;
}

std::shared_ptr<ProcessGroup> new_group(const std::vector<int>& ranks, const std::string& backend,
                                        const std::string& desc, Milliseconds timeout) {
  const std::shared_ptr<World> world = require_world("new_group");
  const Asked asked = asked_of(*world, "new_group", ranks, backend, desc, timeout);
  // The ranks first meet in the default group, with its timeout.
  const Deadline deadline = Deadline::after(std::max(asked.timeout, world->group->timeout()));
  std::uint64_t number = 0;
  {
    MutexLock lock(world->mutex);
    number = world->groups_made++;
  }
  const std::optional<int> place = place_among(*world, asked.ranks);
  std::shared_ptr<Store> store = sub_store(*world, concat("new_group/", number));
  // Before the others hear that this rank has come.
  if (place) rendezvous::register_rank_at(*store, *place, internal::first_places());
  require_agreement(*world, spell(asked.ranks, asked.backend));
  if (!place) return nullptr;
  const internal::EndsWithGroup ends(*world->group);
  try {
    return add_group(*world, asked, deadline, *place, std::move(store), concat("group", number),
                     /*is_registered=*/true);
  } catch (const AbortedError&) {
    ends.throw_if_aborted("new_group");
    throw;
  }
}

std::shared_ptr<ProcessGroup> new_group_among(const std::vector<int>& ranks, const std::string& backend,
                                              const std::string& desc, Milliseconds timeout) {
  const std::shared_ptr<World> world = require_world("new_group_among");
  const Asked asked = asked_of(*world, "new_group_among", ranks, backend, desc, timeout);
  const Deadline deadline = Deadline::after(asked.timeout);
  const std::optional<int> place = place_among(*world, asked.ranks);
  if (!place) return nullptr;
  std::string name = join(asked.ranks, ",");
  {
    MutexLock lock(world->mutex);
    name += concat("/", world->made_among[name]++);
  }
  std::shared_ptr<Store> store = sub_store(*world, concat("new_group_among/", name));
  const std::string first = store->compare_set("backend", "", asked.backend);
  if (first != asked.backend) {
    throw MismatchError(concat("new_group_among: rank ", world->meeting.place.rank, " asked for the backend ",
                               asked.backend, " for the ranks ", join(asked.ranks), "; another of them asked for ",
                               first, "; all of them must ask for the same"));
  }
  return add_group(*world, asked, deadline, *place, std::move(store), concat("group among ", name),
                   /*is_registered=*/false);
}

void destroy_process_group(const std::shared_ptr<ProcessGroup>& group) {
  const std::shared_ptr<World> world = current_world();
  if (group != nullptr && (world == nullptr || group != world->group)) {
    const std::exception_ptr error = internal::shut_down_all(std::span(&group, 1));
    if (world != nullptr) {
      MutexLock lock(world->mutex);
      std::erase(world->groups, group);
    }
    if (error) std::rethrow_exception(error);
    return;
  }
  if (world == nullptr) return;
  const std::exception_ptr error = end(*world);
  if (world == thread_world) {
    thread_world.reset();
  } else {
    log::set_rank(-1);
    ProcessWorld& process = process_world();
    MutexLock lock(process.mutex);
    if (process.world == world) process.world.reset();
  }
  if (error) std::rethrow_exception(error);
}

}  // namespace gradwire
