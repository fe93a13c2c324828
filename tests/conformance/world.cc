// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "tests/conformance/world.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <map>
#include <mutex>
#include <thread>

#include "gradwire/backend/registry.h"
#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "gradwire/store/file_store.h"
#include "gradwire/store/hash_store.h"
#include "gradwire/store/prefix_store.h"
#include "tests/conformance/child_process.h"
#include "tests/conformance/loopback_channel.h"
#include "tests/support/temporary_folder.h"

namespace gradwire::testing {
namespace {

// Set by a rank whose body ended by an exception: it comes to no meeting any more.
constexpr const char* kSomeoneFailed = "someone failed";

std::string name_of(Kind kind) {
  switch (kind) {
    case Kind::loopback:
      return "loopback";
    case Kind::threads:
      return "threads";
    case Kind::shm:
      return "shm";
    case Kind::ucx:
      return "ucx";
    case Kind::mpi:
      return "mpi";
  }
  return "unknown";
}

std::unique_ptr<Backend> make_from_registry(const RankContext& context, const std::shared_ptr<Store>& store,
                                            int generation, Milliseconds timeout) {
  BackendOptions options;
  options.store = std::make_shared<PrefixStore>(concat("backend", generation), store);
  if (context.wrap_store) options.store = context.wrap_store(options.store);
  options.rank = context.rank();
  options.size = context.size();
  options.timeout = timeout;
  return gradwire::make_backend(name_of(context.world().kind), options);
}

void run_rank(RankContext& context, bool joined, const std::function<void(RankContext&)>& body) {
  SCOPED_TRACE(concat("rank ", context.rank(), " of ", context.world()));
  try {
    if (joined) context.join();
    body(context);
  } catch (const std::exception& error) {
    ADD_FAILURE() << "an exception left the test: " << describe(error);
    context.store().set(kSomeoneFailed, "yes");
  }
}

// The hubs of one loopback world, one a generation.
class Hubs {
 public:
  std::shared_ptr<LoopbackHub> of(int generation, int size) {
    const std::lock_guard lock(mutex_);
    auto& hub = hubs_[generation];
    if (hub == nullptr) hub = std::make_shared<LoopbackHub>(size);
    return hub;
  }

 private:
  std::mutex mutex_;
  std::map<int, std::shared_ptr<LoopbackHub>> hubs_;
};

void run_threads(const World& world, bool joined, const std::function<void(RankContext&)>& body) {
  const auto store = std::make_shared<HashStore>();
  const auto hubs = std::make_shared<Hubs>();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world.size; ++rank) {
    threads.emplace_back([&, rank] {
      RankContext context(world, rank, std::make_shared<PrefixStore>("test", store->clone()));
      context.make_backend = [&](int generation, Milliseconds timeout) -> std::unique_ptr<Backend> {
        if (world.kind == Kind::loopback) {
          return std::make_unique<LoopbackBackend>(hubs->of(generation, world.size), rank);
        }
        return make_from_registry(context, store->clone(), generation, timeout);
      };
      run_rank(context, joined, body);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

void run_processes(const World& world, bool joined, const std::function<void(RankContext&)>& body) {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/store";
  std::vector<ChildProcess> children;
  for (int rank = 0; rank < world.size; ++rank) {
    children.emplace_back(concat("rank ", rank, " of ", world), [&, rank] {
      const std::unique_ptr<RankContext> context = process_rank(world, rank, path);
      run_rank(*context, joined, body);
      context->leave();
    });
  }
  const Deadline guard = Deadline::after(3 * kGuard);
  for (ChildProcess& child : children) child.expect_success(guard);
}

int from_mpirun(const char* variable) {
  const char* const text = std::getenv(variable);
  return text == nullptr ? -1 : std::atoi(text);
}

// The rank of this process in the one test after the other that all ranks run in step.
void run_as_mpi_rank(const World& world, bool joined, const std::function<void(RankContext&)>& body) {
  static int worlds = 0;
  const int rank = from_mpirun("OMPI_COMM_WORLD_RANK");
  // mpirun is the parent of all its ranks on a host.
  const std::string path =
      concat(std::filesystem::temp_directory_path().string(), "/gradwire-mpi-test.", ::getppid(), ".", worlds++);
  {
    const std::unique_ptr<RankContext> context = process_rank(world, rank, path);
    run_rank(*context, joined, body);
    context->leave();
    // Rank 0 takes the file away, after the others are through with it.
    context->store().set(concat("through/", rank), "yes");
    if (rank != 0) return;
    std::vector<std::string> through;
    for (int r = 0; r < world.size; ++r) through.push_back(concat("through/", r));
    context->store().wait(through, kGuard);
  }
  std::filesystem::remove(path);
}

void run_any(const World& world, bool joined, const std::function<void(RankContext&)>& body) {
  if (world.kind == Kind::mpi) {
    run_as_mpi_rank(world, joined, body);
  } else if (has_processes(world.kind)) {
    run_processes(world, joined, body);
  } else {
    run_threads(world, joined, body);
  }
}

}  // namespace

std::string name_of(const World& world) { return concat(name_of(world.kind), "_", world.size); }
std::ostream& operator<<(std::ostream& out, const World& world) { return out << name_of(world); }

bool can_run(const World& world) {
  if (world.kind == Kind::ucx) return GRADWIRE_TEST_UCX != 0;
  return world.kind != Kind::mpi || from_mpirun("OMPI_COMM_WORLD_SIZE") == world.size;
}

std::vector<World> worlds(const std::vector<int>& sizes) {
  std::vector<World> all;
  for (const Kind kind : {Kind::loopback, Kind::threads, Kind::shm, Kind::ucx, Kind::mpi}) {
    const bool takes_wide = (kind == Kind::loopback || kind == Kind::ucx) && !kThreadSanitizer;
    for (const int size : sizes) {
      if (size != kWideWorld || takes_wide) all.push_back({kind, size});
    }
  }
  return all;
}

void RankContext::meet(const std::string& name) const {
  const std::string key = concat("meet/", name);
  if (store_->add(key, 1) == size()) store_->set(key + "/all", "yes");
  const std::vector<std::string> all{key + "/all"};
  const std::vector<std::string> failed{kSomeoneFailed};
  const Deadline guard = Deadline::after(kGuard);
  for (;;) {
    try {
      return store_->wait(all, std::chrono::seconds(1));
    } catch (const TimeoutError&) {
      if (guard.expired() || store_->check(failed)) throw;
    }
  }
}

void RankContext::join(int generation, Milliseconds timeout) {
  backend_.reset();
  backend_ = make_backend(generation, timeout);
}

std::unique_ptr<RankContext> process_rank(const World& world, int rank, const std::string& store_path) {
  const auto store = std::make_shared<FileStore>(store_path, world.size);
  store->set_timeout(kGuard);
  auto context = std::make_unique<RankContext>(world, rank, std::make_shared<PrefixStore>("test", store->clone()));
  context->make_backend = [&self = *context, store](int generation, Milliseconds timeout) {
    return make_from_registry(self, store->clone(), generation, timeout);
  };
  return context;
}

void run_world(const World& world, const std::function<void(RankContext&)>& body) { run_any(world, true, body); }
void run_world_unjoined(const World& world, const std::function<void(RankContext&)>& body) {
  run_any(world, false, body);
}

CallOptions guarded() { return {.deadline = Deadline::after(kGuard), .tag = {}}; }
CallOptions with_timeout(Milliseconds timeout) { return {.deadline = Deadline::after(timeout), .tag = {}}; }
CallOptions with_tag(CallTag tag) { return {.deadline = Deadline::after(kGuard), .tag = tag}; }

}  // namespace gradwire::testing
