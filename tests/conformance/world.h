// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Runs a function on every rank of a world, over any backend, and brings the failures of all ranks back to the test.
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

// The thread sanitizer makes a call many times as slow, and looks for races, which depend on the path of a call and not
// on which of several counts took that path. So there, and only there, tests go through fewer counts.
#if defined(__SANITIZE_THREAD__)
inline constexpr bool kThreadSanitizer = true;
#elif defined(__has_feature)
inline constexpr bool kThreadSanitizer = __has_feature(thread_sanitizer);
#else
inline constexpr bool kThreadSanitizer = false;
#endif

// `all`; under the thread sanitizer `few`, which must take every path that `all` takes.
inline std::vector<std::size_t> counts_of(std::vector<std::size_t> all, std::vector<std::size_t> few) {
  return kThreadSanitizer ? std::move(few) : std::move(all);
}

enum class Kind {
  loopback,  // generic collectives over mailboxes, ranks as threads
  threads,   // the backend of that name, ranks as threads
  shm,       // the backend of that name, ranks as forked processes
  mpi,       // the backend of that name; mpirun has started this program once a rank, and each runs every test
};

struct World {
  Kind kind = Kind::loopback;
  int size = 1;
};
std::string name_of(const World& world);  // "shm_3"
std::ostream& operator<<(std::ostream& out, const World& world);

// Whether ranks are processes, one each.
inline bool has_processes(Kind kind) { return kind == Kind::shm || kind == Kind::mpi; }
// Whether a world can run here: one of MPI needs a program that mpirun started with as many ranks.
bool can_run(const World& world);

// All kinds with each of `sizes`.
std::vector<World> worlds(const std::vector<int>& sizes);

// Calls in tests end by this, so that a hang is a failure with a name. Generous: machines are slow under sanitizers.
inline constexpr Milliseconds kGuard = std::chrono::seconds(60);

// What one rank of a running world has.
class RankContext {
 public:
  RankContext(const World& world, int rank, std::shared_ptr<Store> store)
      : world_(world), rank_(rank), store_(std::move(store)) {}

  const World& world() const { return world_; }
  int rank() const { return rank_; }
  int size() const { return world_.size; }
  Backend& backend() const { return *backend_; }
  Channel& channel() const { return backend_->channel(); }
  // Beside the backend's own keys.
  Store& store() const { return *store_; }
  // Returns when all ranks have called it with this name; needs no channel, so it works between failures.
  void meet(const std::string& name) const;
  // Destroys the backend: this rank leaves.
  void leave() { backend_.reset(); }
  // Replaces the backend (by another over a prefix of the store, named by `generation`). Loopback worlds start afresh
  // with each generation.
  void join(int generation = 0, Milliseconds timeout = kGuard);

  std::function<std::unique_ptr<Backend>(int generation, Milliseconds timeout)> make_backend;

 private:
  World world_;
  int rank_;
  std::shared_ptr<Store> store_;
  std::unique_ptr<Backend> backend_;
};

// Runs `body` on every rank of `world` with a backend made. An exception that leaves it, and every failed expectation,
// fails the test, with the rank's number. Ranks that are processes start as forked children of this one.
void run_world(const World& world, const std::function<void(RankContext&)>& body);
// The same, but the body calls join() itself.
void run_world_unjoined(const World& world, const std::function<void(RankContext&)>& body);

// The context of a rank that is a process of its own, not joined; `store_path` is the file they meet through. For tests
// that start their ranks themselves. Call it in the rank's process.
std::unique_ptr<RankContext> process_rank(const World& world, int rank, const std::string& store_path);

// Options that end by kGuard.
CallOptions guarded();
CallOptions with_timeout(Milliseconds timeout);
CallOptions with_tag(CallTag tag);

}  // namespace gradwire::testing
