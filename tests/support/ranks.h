// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Runs the ranks of a test: as threads of the test's own process, or as processes.
//
//   run_ranks("shm", 3, [](int rank, const std::shared_ptr<Store>& store) {
//     auto group = make_process_group("shm", store, rank, 3);
//     ...EXPECT_EQ(...)...
//   });
//
// "threads": each rank is a std::thread, over one HashStore. Any other backend: each rank is a forked process, over one
// FileStore in a separate folder. So before such a test, the process must not have used autograd, or more than one
// thread of libtorch. A failed expectation or an exception of a rank is a failure of the test that names the rank. A
// rank that hangs past the guard ends the test: processes are killed; with threads the program ends.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "gradwire/base/deadline.h"
#include "gradwire/base/error.h"
#include "gradwire/base/os_handles.h"
#include "gradwire/base/strings.h"
#include "gradwire/store/file_store.h"
#include "gradwire/store/hash_store.h"
#include "tests/support/temporary_folder.h"

namespace gradwire::test_support {

using RankBody = std::function<void(int rank, const std::shared_ptr<Store>& store)>;

// Long, because a loaded machine with two cores may run eight ranks of a sanitized build.
inline constexpr std::chrono::seconds kRankGuard{240};

// How one rank ended.
struct RankEnd {
  bool failed = false;
  std::string message;  // the exception's text, "failed expectations", "killed by signal 9", "hung"
};

namespace internal {

inline int failure_count() {
  const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
  return test == nullptr ? 0 : test->result()->total_part_count();
}

inline RankEnd run_one(int rank, const std::shared_ptr<Store>& store, const RankBody& body) {
  try {
    body(rank, store);
  } catch (const std::exception& error) {
    return {true, describe(error)};
  } catch (...) {
    return {true, "threw something that is no std::exception"};
  }
  return {};
}

inline std::vector<RankEnd> run_threads(int world, const RankBody& body, std::chrono::seconds guard) {
  auto store = std::make_shared<HashStore>();
  std::vector<RankEnd> ends(static_cast<std::size_t>(world));
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<bool> done(static_cast<std::size_t>(world), false);
  int left = world;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world; ++rank) {
    threads.emplace_back([&, rank] {
      RankEnd end = run_one(rank, store, body);
      const std::lock_guard lock(mutex);
      ends[static_cast<std::size_t>(rank)] = std::move(end);
      done[static_cast<std::size_t>(rank)] = true;
      --left;
      changed.notify_all();
    });
  }
  {
    std::unique_lock lock(mutex);
    if (!changed.wait_for(lock, guard, [&] { return left == 0; })) {
      for (int rank = 0; rank < world; ++rank) {
        if (!done[static_cast<std::size_t>(rank)])
          std::fprintf(stderr, "rank %d of %d hung; ending the test program\n", rank, world);
        if (!ends[static_cast<std::size_t>(rank)].message.empty())
          std::fprintf(stderr, "rank %d: %s\n", rank, ends[static_cast<std::size_t>(rank)].message.c_str());
      }
      std::abort();
    }
  }
  for (auto& thread : threads) thread.join();
  return ends;
}

struct ChildRank {
  pid_t pid = -1;
  UniqueFd message;  // a pipe with the child's message; its end shows that the child has ended
};

inline ChildRank start_child(int rank, const std::string& file, const RankBody& body) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) throw ResourceError("cannot make a pipe");
  UniqueFd read_end(ends[0]);
  UniqueFd write_end(ends[1]);
  std::fflush(nullptr);
  const pid_t pid = ::fork();
  if (pid < 0) throw ResourceError("cannot fork");
  if (pid > 0) return {pid, std::move(read_end)};
  ::setenv("GRADWIRE_HEARTBEAT_MS", "60000",
           /*overwrite=*/0);  // a rank may stand still for as long as the machine does
  const int before = failure_count();
  RankEnd end;
  {
    // The store is destroyed before the process ends, as in a program.
    std::shared_ptr<Store> store = std::make_shared<FileStore>(file);
    end = run_one(rank, store, body);
  }
  if (!end.failed && failure_count() != before) end = {true, "failed expectations"};
  std::fflush(nullptr);
  if (!end.message.empty() && ::write(write_end.get(), end.message.data(), end.message.size()) < 0) ::_exit(2);
  ::_exit(end.failed ? 1 : 0);
}

// Reads the child's message until the child ends or the deadline passes. Returns whether the child has ended.
inline bool read_all(int fd, Deadline deadline, std::string& text) {
  std::array<char, 4096> buffer{};
  while (true) {
    pollfd entry{fd, POLLIN, 0};
    const auto left = std::min<std::int64_t>(deadline.remaining().count(), 1000);
    const int ready = ::poll(&entry, 1, static_cast<int>(left));
    if (ready == 0 && deadline.expired()) return false;
    if (ready <= 0) continue;
    const ssize_t n = ::read(fd, buffer.data(), buffer.size());
    if (n <= 0) return true;
    text.append(buffer.data(), static_cast<std::size_t>(n));
  }
}

inline std::vector<RankEnd> run_processes(int world, const RankBody& body, std::chrono::seconds guard) {
  const TemporaryFolder folder;
  std::vector<ChildRank> children;
  for (int rank = 0; rank < world; ++rank) children.push_back(start_child(rank, folder.path() + "/store", body));
  const Deadline deadline = Deadline::after(std::chrono::duration_cast<Milliseconds>(guard));
  std::vector<RankEnd> ends;
  for (ChildRank& child : children) {
    RankEnd end;
    const bool gone = read_all(child.message.get(), deadline, end.message);
    if (!gone) ::kill(child.pid, SIGKILL);
    int status = 0;
    ::waitpid(child.pid, &status, 0);
    end.failed = !gone || status != 0;
    if (!gone) {
      end.message = "hung";
    } else if (WIFSIGNALED(status)) {
      end.message = concat("killed by signal ", WTERMSIG(status));
    } else if (status != 0 && end.message.empty()) {
      end.message = concat("exit code ", WEXITSTATUS(status));
    }
    ends.push_back(std::move(end));
  }
  return ends;
}

}  // namespace internal

// Runs the ranks and returns how each one ended, in rank order. For tests in which ranks must fail.
inline std::vector<RankEnd> collect_ranks(const std::string& backend, int world, const RankBody& body,
                                          std::chrono::seconds guard = kRankGuard) {
  return backend == "threads" ? internal::run_threads(world, body, guard) : internal::run_processes(world, body, guard);
}

// Runs the ranks. Every failure of a rank is a failure of the test.
inline void run_ranks(const std::string& backend, int world, const RankBody& body,
                      std::chrono::seconds guard = kRankGuard) {
  const std::vector<RankEnd> ends = collect_ranks(backend, world, body, guard);
  for (std::size_t rank = 0; rank < ends.size(); ++rank) {
    if (ends[rank].failed)
      ADD_FAILURE() << "rank " << rank << " of " << world << " (" << backend << "): " << ends[rank].message;
  }
}

}  // namespace gradwire::test_support
