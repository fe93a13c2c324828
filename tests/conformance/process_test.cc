// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The effects of a backend on its process and on the machine: descriptors, mappings, files, forked children, and memory
// that the machine refuses.
#include <fcntl.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <set>
#include <thread>
#include <vector>

#include "gradwire/base/deadline.h"
#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "tests/conformance/child_process.h"
#include "tests/conformance/conformance.h"
#include "tests/support/temporary_folder.h"

namespace gradwire::testing {
namespace {

GRADWIRE_CONFORMANCE_SUITE(Process, 2, 3);

// What only ranks with a process of their own can show.
class ProcessRanks : public ConformanceTest {};
INSTANTIATE_TEST_SUITE_P(All, ProcessRanks, ::testing::Values(World{Kind::shm, 2}, World{Kind::shm, 3}), world_name);

// What a process may do to its forked children, and they to it.
class ForkedChildren : public ConformanceTest {};
INSTANTIATE_TEST_SUITE_P(All, ForkedChildren,
                         ::testing::Values(World{Kind::shm, 2}, World{Kind::shm, 3}, World{Kind::ucx, 2},
                                           World{Kind::ucx, 3}, World{Kind::mpi, 2}, World{Kind::mpi, 3}),
                         world_name);

std::size_t entries(const std::string& folder) {
  const auto begin = std::filesystem::directory_iterator(folder);
  return static_cast<std::size_t>(std::distance(begin, std::filesystem::directory_iterator{}));
}

std::size_t open_descriptors() { return entries("/proc/self/fd"); }

std::size_t mappings() {
  std::ifstream maps("/proc/self/maps");
  return static_cast<std::size_t>(std::count(std::istreambuf_iterator<char>(maps), {}, '\n'));
}

std::size_t threads() { return entries("/proc/self/task"); }

std::set<std::string> files_in(const std::string& folder) {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) names.insert(entry.path().filename());
  return names;
}

// The files of `folder` that were not there `before`, and stay: those that go within a minute belong to programs that
// run beside this one.
std::set<std::string> left_in(const std::string& folder, const std::set<std::string>& before) {
  std::set<std::string> left = files_in(folder);
  std::erase_if(left, [&](const std::string& name) { return before.contains(name); });
  const Deadline deadline = Deadline::after(std::chrono::minutes(1));
  while (!left.empty() && !deadline.expired()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    const std::set<std::string> now = files_in(folder);
    std::erase_if(left, [&](const std::string& name) { return !now.contains(name); });
  }
  return left;
}

void use(Channel& channel) {
  const Allocation allocation = channel.allocate(10'000, guarded());
  channel.all_reduce(allocation.data.get(), 2'500, DType::f32, ReduceOp::sum(), guarded());
  const std::unique_ptr<Channel> duplicate = channel.duplicate(guarded());
  std::vector<float> data(100'000, 1.0F);
  duplicate->all_reduce(data.data(), data.size(), DType::f32, ReduceOp::sum(), guarded());
  EXPECT_EQ(data[99'999], static_cast<float>(channel.size()));
}

TEST_P(Process, TwoHundredLivesLeakNoDescriptorMappingThreadOrFile) {
  const std::set<std::string> before = files_in("/dev/shm");
  run_world_unjoined(world(), [](RankContext& context) {
    // The first lives warm up what a process keeps: arenas of malloc, stacks of threads, lazily opened files.
    std::size_t fds = 0, maps = 0, tasks = 0;
    // Ranks that share a process would see the descriptors with which others count.
    const bool counts = has_processes(context.world().kind) || context.rank() == 0;
    for (int life = 0; life < 200; ++life) {
      context.join(life);
      if (life % 10 == 0) use(context.channel());
      context.leave();
      if (life != 20) continue;
      context.meet("warm");
      if (counts) {
        fds = open_descriptors();
        maps = mappings();
        tasks = threads();
      }
      context.meet("counted");
    }
    context.meet("all left");
    if (counts) {
      EXPECT_EQ(open_descriptors(), fds);
      EXPECT_EQ(threads(), tasks);
      // malloc may map a little more; a leak would be one or more a life.
      EXPECT_LT(mappings(), maps + 100);
    }
    context.meet("end");
  });
  EXPECT_EQ(left_in("/dev/shm", before), std::set<std::string>());
}

TEST_P(ForkedChildren, AForkedChildThatExitsDisturbsNobody) {
  run([](RankContext& context) {
    use(context.channel());
    const Allocation allocation = context.channel().allocate(40'000, guarded());
    for (int round = 0; round < 3; ++round) {
      const pid_t child = ::fork();
      ASSERT_GE(child, 0);
      if (child == 0) {
        // As a data loader's worker that ends by exit(): destructors of what it inherited run here.
        int code = 1;
        try {
          context.channel().barrier(guarded());
        } catch (const InvalidArgument&) {
          code = 0;
        } catch (...) {
        }
        context.leave();
        ::_exit(code);
      }
      int status = 0;
      ASSERT_EQ(::waitpid(child, &status, 0), child);
      EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0)
          << "the child could use its parent's channel, or crashed";
      use(context.channel());
      context.channel().all_reduce(allocation.data.get(), 10'000, DType::f32, ReduceOp::sum(), guarded());
    }
  });
}

TEST_P(ForkedChildren, AChildThatDropsMemoryDoesNotWaitForAThreadOfItsParent) {
  run([](RankContext& context) {
    // With many segments, a thread that searches them holds their lock nearly always: at most forks, too.
    std::vector<Allocation> memory;
    for (int i = 0; i < 100; ++i) memory.push_back(context.channel().allocate(1, guarded()));
    std::atomic<bool> done = false;
    std::thread reader([&] {
      const std::byte elsewhere{};
      while (!done) EXPECT_TRUE(context.channel().symmetric_memory(&elsewhere, 1).empty());
    });
    for (int round = 0; round < 20; ++round) {
      const pid_t child = ::fork();
      if (child == 0) {
        ::alarm(30);  // ends a child that hangs
        memory.clear();
        ::_exit(0);
      }
      int status = 0;
      EXPECT_EQ(::waitpid(child, &status, 0), child);
      EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "the child hung, or crashed";
      if (status != 0) break;
    }
    done = true;
    reader.join();
    use(context.channel());
  });
}

TEST_P(ForkedChildren, AChildThatLivesOnDoesNotKeepItsParentAlive) {
  run([](RankContext& context) {
    // The child holds copies of all descriptors. Its parent leaves; the others must see that.
    if (context.rank() == 0) {
      const ChildProcess child("a sleeping child", [] { ::pause(); });
      context.leave();
      context.meet("left");
      context.meet("seen");
      return;
    }
    context.meet("left");
    expect_contains(expect_throw<PeerError>([&] { context.channel().barrier(guarded()); }), "rank 0");
    context.meet("seen");
  });
}

// A tmpfs of 1 MB, while it lives; ok() is false where mounting is refused.
class TinyFileSystem {
 public:
  TinyFileSystem() : mounted_(::mount("tmpfs", folder_.path().c_str(), "tmpfs", 0, "size=1m") == 0), error_(errno) {}
  ~TinyFileSystem() {
    if (mounted_) ::umount2(folder_.path().c_str(), MNT_DETACH);
  }
  bool ok() const { return mounted_; }
  std::string error() const { return std::strerror(error_); }
  const std::string& path() const { return folder_.path(); }

 private:
  TemporaryFolder folder_;
  bool mounted_;
  int error_;
};

TEST_P(ProcessRanks, MemoryThatIsRefusedIsAnErrorOnAllRanksAndNoSignal) {
  const TinyFileSystem tiny;
  if (!tiny.ok()) GTEST_SKIP() << "mounting a tmpfs is refused here: " << tiny.error();
  run_world_unjoined(world(), [&](RankContext& context) {
    // With 1 MB the backend itself may find no room: then making it is what fails, on all ranks, with the same word.
    ::setenv("GRADWIRE_SHM_FOLDER", tiny.path().c_str(), 1);
    try {
      context.join(0);
    } catch (const Error& error) {
      expect_contains(describe(error), "ResourceError");
      return;
    }
    for (int round = 0; round < 3; ++round) {
      const std::string text =
          expect_throw<ResourceError>([&] { context.channel().allocate(std::size_t{8} << 20, guarded()); });
      EXPECT_FALSE(text.empty());
      std::vector<float> data(100'000, 1.0F);
      context.channel().all_reduce(data.data(), data.size(), DType::f32, ReduceOp::sum(), guarded());
      EXPECT_EQ(data[5], static_cast<float>(context.size()));
    }
  });
  EXPECT_EQ(entries(tiny.path()), 0U) << "files were left behind";
}

TEST_P(ProcessRanks, MemoryThatIsRefusedAfterTheStartIsAnErrorOnAllRanksAndTheChannelGoesOn) {
  const TinyFileSystem tiny;
  if (!tiny.ok()) GTEST_SKIP() << "mounting a tmpfs is refused here: " << tiny.error();
  run([&](RankContext& context) {
    // The world is made of memfds; from here on memory comes from the tiny file system.
    ::setenv("GRADWIRE_SHM_FOLDER", tiny.path().c_str(), 1);
    expect_throw<ResourceError>([&] { context.channel().allocate(std::size_t{8} << 20, guarded()); });
    std::vector<float> data(100'000, 1.0F);
    context.channel().all_reduce(data.data(), data.size(), DType::f32, ReduceOp::sum(), guarded());
    EXPECT_EQ(data[5], static_cast<float>(context.size()));
    // What fits is given, and its bytes are there: touching them raises no SIGBUS.
    const Allocation fits = context.channel().allocate(64 << 10, guarded());
    std::fill_n(fits.data.get(), fits.bytes, std::byte{7});
    context.meet("touched");
  });
}

}  // namespace
}  // namespace gradwire::testing
