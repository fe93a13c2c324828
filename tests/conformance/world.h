// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Runs a function on every rank of a world, over any backend, and reports the failures of all ranks in the test.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "gradwire/backend/backend.h"
#include "gradwire/store/store.h"

namespace gradwire::testing {

// The thread sanitizer slows a call down many times. It searches for races, which depend on the path of a call, not on
// which of several counts takes this path. So under the thread sanitizer only, tests use fewer counts.
#if defined(__SANITIZE_THREAD__)
inline constexpr bool kThreadSanitizer = true;
#elif defined(__has_feature)
inline constexpr bool kThreadSanitizer = __has_feature(thread_sanitizer);
#else
inline constexpr bool kThreadSanitizer = false;
#endif

// Returns `all`, or under the thread sanitizer `few`, which must take every path that `all` takes.
inline std::vector<std::size_t> counts_of(std::vector<std::size_t> all, std::vector<std::size_t> few) {
  return kThreadSanitizer ? std::move(few) : std::move(all);
}

enum class Kind {
  loopback,  // generic collectives over mailboxes, ranks as threads
  threads,   // the backend of that name, ranks as threads
  shm,       // the backend of that name, ranks as forked processes
  ucx,       // the backend of that name, ranks as forked processes
  mpi,       // the backend of that name; mpirun has started this program once a rank, and each process runs every test
};

struct World {
  Kind kind = Kind::loopback;
  int size = 1;
};
std::string name_of(const World& world);  // "shm_3"
std::ostream& operator<<(std::ostream& out, const World& world);

// Whether each rank is a process.
inline bool has_processes(Kind kind) { return kind == Kind::shm || kind == Kind::ucx || kind == Kind::mpi; }
// Whether a world can run here. A world of MPI needs a program that mpirun started with the same number of ranks, a
// world of ucx a gradwire that was built with UCX.
bool can_run(const World& world);

// A world in which GenericChannel uses its algorithms for many ranks. For its backends only, and not under the thread
// sanitizer: the algorithms run on their callers' threads alone, and two cores run 19 ranks under it too slowly for the
// tests' deadlines.
inline constexpr int kWideWorld = 19;

// All kinds with each of `sizes`.
std::vector<World> worlds(const std::vector<int>& sizes);

// The deadline of calls in tests, so that a hang becomes a failure with a name. Long, because sanitizers are slow.
inline constexpr Milliseconds kGuard = std::chrono::seconds(60);

// The resources of one rank of a running world.
class RankContext {
 public:
  RankContext(const World& world, int rank, std::shared_ptr<Store> store)
      : world_(world), rank_(rank), store_(std::move(store)) {}

  const World& world() const { return world_; }
  int rank() const { return rank_; }
  int size() const { return world_.size; }
  Backend& backend() const { return *backend_; }
  Channel& channel() const { return backend_->channel(); }
  // A store with keys of its own, apart from the backend's.
  Store& store() const { return *store_; }
  // Waits until all ranks have called it with this name. Uses no channel, so it works after a failure too.
  void meet(const std::string& name) const;
  // Destroys the backend: this rank leaves.
  void leave() { backend_.reset(); }
  // Replaces the backend by a new one, over a prefix of the store that `generation` names. Loopback worlds get new
  // mailboxes with each generation.
  void join(int generation = 0, Milliseconds timeout = kGuard);

  std::function<std::unique_ptr<Backend>(int generation, Milliseconds timeout)> make_backend;
  // What join() does with the backend's store first. Null: nothing.
  std::function<std::shared_ptr<Store>(std::shared_ptr<Store>)> wrap_store;

 private:
  World world_;
  int rank_;
  std::shared_ptr<Store> store_;
  std::unique_ptr<Backend> backend_;
};

// Runs `body` on every rank of `world`, after making the rank's backend. An exception of `body` and every failed
// expectation fail the test, with the rank's number. Ranks that are processes are forked children of this process.
void run_world(const World& world, const std::function<void(RankContext&)>& body);
// The same, but `body` calls join() itself.
void run_world_unjoined(const World& world, const std::function<void(RankContext&)>& body);

// Returns the context, not joined, of a rank that is a process. `store_path` is the file of the ranks' store. For tests
// that start their ranks themselves. Call it in the rank's process.
std::unique_ptr<RankContext> process_rank(const World& world, int rank, const std::string& store_path);

// Options with the deadline kGuard.
CallOptions guarded();
CallOptions with_timeout(Milliseconds timeout);
CallOptions with_tag(CallTag tag);

}  // namespace gradwire::testing
