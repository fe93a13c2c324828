// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Collectives that read private memory through the kernel. Proves: they do so where the kernel allows it to all ranks,
// and not where it refuses one; a refusal in the middle of a job ends the group with a clear error on every rank.
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <functional>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "gradwire/base/trace.h"
#include "tests/conformance/child_process.h"
#include "tests/conformance/conformance.h"

namespace gradwire::testing {
namespace {

class Reading : public ConformanceTest {
  const EnvironmentValue always_{"GRADWIRE_READ_PEERS", "1"};
};
INSTANTIATE_TEST_SUITE_P(All, Reading, ::testing::Values(World{Kind::shm, 2}, World{Kind::shm, 3}), world_name);

// From now on the kernel refuses process_vm_readv to this process. For good, so a rank with a process of its own calls
// it.
void refuse_reading() {
  std::array<sock_filter, 4> filter{{
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_readv, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  }};
  const sock_fprog program{static_cast<unsigned short>(filter.size()), filter.data()};
  ASSERT_EQ(::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
  ASSERT_EQ(::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program), 0) << "this test needs seccomp filters";
}

// Whether the kernel lets this rank read the others, asked for without gradwire.
bool kernel_allows(RankContext& context) {
  const int own = 4711 + context.rank();
  Store& store = context.store();
  const auto key = [](const char* what, int rank) { return concat(what, "/", rank); };
  store.set(key("pid", context.rank()), std::to_string(::getpid()));
  store.set(key("address", context.rank()), std::to_string(reinterpret_cast<std::uintptr_t>(&own)));
  bool allows = true;
  for (int peer = 0; peer < context.size(); ++peer) {
    int found = 0;
    const iovec here{&found, sizeof(found)};
    const iovec there{reinterpret_cast<void*>(std::stoull(store.get(key("address", peer)))), sizeof(found)};
    const pid_t process = std::stoi(store.get(key("pid", peer)));
    allows = ::process_vm_readv(process, &here, 1, &there, 1, 0) == sizeof(found) && found == 4711 + peer && allows;
  }
  context.meet("all have looked");
  return allows;
}

constexpr std::size_t kCount = 100'003;  // longer than a window of the staging areas, in floats

void gather_all(RankContext& context) {
  const std::vector<float> input(kCount, static_cast<float>(context.rank() + 1));
  std::vector<std::vector<float>> outputs(static_cast<std::size_t>(context.size()), std::vector<float>(kCount));
  std::vector<void*> targets;
  for (auto& output : outputs) targets.push_back(output.data());
  context.channel().all_gather(input.data(), targets, kCount, DType::f32, guarded());
  for (int rank = 0; rank < context.size(); ++rank) {
    EXPECT_EQ(outputs[static_cast<std::size_t>(rank)], std::vector<float>(kCount, static_cast<float>(rank + 1)));
  }
}

TEST_P(Reading, ARefusalBeforeTheRanksMeetKeepsAllOnTheStagingAreas) {
  run_world_unjoined(world(), [](RankContext& context) {
    if (context.rank() == 1) refuse_reading();
    context.join();
    gather_all(context);
  });
}

TEST_P(Reading, ARefusalInTheMiddleEndsTheGroupWithAnErrorThatNamesTheRank) {
  run([](RankContext& context) {
    gather_all(context);
    if (!kernel_allows(context)) return;  // then nobody reads anybody: the test above
    if (context.rank() == 1) refuse_reading();
    context.meet("refused");
    const std::string message = context.rank() == 1 ? expect_throw<Error>([&] { gather_all(context); })
                                                    : expect_throw<PeerError>([&] { gather_all(context); });
    const char* const expected =
        context.rank() == 1 ? "the kernel did not let this rank read a buffer of rank 0" : "rank 1 failed";
    EXPECT_NE(message.find(expected), std::string::npos) << message;
  });
}

// What rank 1 does before it takes what the others offer.
std::function<void()> before_the_copy;

void on_copy(void*, const trace::Event& event) noexcept {
  if (before_the_copy && std::string_view(event.name) == "collective.copy") before_the_copy();
}

// Rank 0 waits for rank 1 at the exit, until its deadline, and uses its memory for something else then.
void give_up_while_another_reads(RankContext& context, float* input) {
  std::fill_n(input, kCount, 1.0F);
  std::vector<std::vector<float>> outputs(static_cast<std::size_t>(context.size()), std::vector<float>(kCount));
  std::vector<void*> targets;
  for (auto& output : outputs) targets.push_back(output.data());
  const auto gather = [&](const CallOptions& options) {
    context.channel().all_gather(input, targets, kCount, DType::f32, options);
  };
  context.meet("ready");
  if (context.rank() == 0) {
    expect_throw<TimeoutError>([&] { gather(with_timeout(Milliseconds(300))); });
    std::fill_n(input, kCount, 2.0F);
    context.store().set("overwritten", "");
  } else if (context.rank() == 1) {
    before_the_copy = [&] { context.store().get("overwritten"); };
    trace::set_sink(&on_copy, nullptr);
    expect_contains(expect_throw<TimeoutError>([&] { gather(guarded()); }), "rank 0 failed");
    trace::set_sink(nullptr, nullptr);
    before_the_copy = nullptr;
  } else {
    expect_contains(expect_throw<TimeoutError>([&] { gather(guarded()); }), "rank 0 failed");
  }
  context.meet("end");
}

TEST_P(Reading, ARankThatGivesUpMeanwhileFailsWhoReadsItsPrivateMemory) {
  run([](RankContext& context) {
    std::vector<float> input(kCount);
    give_up_while_another_reads(context, input.data());
  });
}

TEST_P(Reading, ARankThatGivesUpMeanwhileFailsWhoReadsItsSharedMemory) {
  run([](RankContext& context) {
    const Allocation input = context.channel().allocate(kCount * sizeof(float), guarded());
    give_up_while_another_reads(context, reinterpret_cast<float*>(input.data.get()));
  });
}

// The memory of a process that dies goes some time before its end is known: the longer, the more there is.
TEST(ReadingDeath, IsNamedAlsoBeforeTheEndOfTheProcessIsKnown) {
  const EnvironmentValue always("GRADWIRE_READ_PEERS", "1");
  const TemporaryFolder folder;
  const auto rank = [&](int number, const std::function<void(RankContext&)>& body) {
    return ChildProcess(concat("rank ", number), [&, number] {
      const auto context = process_rank({Kind::shm, 2}, number, folder.path() + "/store");
      context->join();
      body(*context);
    });
  };
  ChildProcess dies = rank(0, [](RankContext& context) {
    const std::vector<char> much(std::size_t{256} << 20, 'x');
    context.store().set("pid", std::to_string(::getpid()));
    before_the_copy = [] { ::raise(SIGKILL); };
    trace::set_sink(&on_copy, nullptr);
    gather_all(context);
    ADD_FAILURE() << "rank 0 lives with " << much.size() << " bytes";
  });
  ChildProcess reads = rank(1, [](RankContext& context) {
    const pid_t other = std::stoi(context.store().get("pid"));
    before_the_copy = [&] {
      char byte = 0;
      const iovec here{&byte, 1};
      const Deadline guard = Deadline::after(kGuard);
      while (::process_vm_readv(other, &here, 1, &here, 1, 0) == 1 || (errno != ESRCH && errno != EPERM)) {
        if (guard.expired()) break;
      }
    };
    trace::set_sink(&on_copy, nullptr);
    expect_contains(expect_throw<PeerError>([&] { gather_all(context); }), "rank 0 (process ");
    trace::set_sink(nullptr, nullptr);
  });
  reads.expect_success(Deadline::after(2 * kGuard));
  EXPECT_TRUE(dies.wait(Deadline::after(kGuard)).ended);
}

// The ranks disagree on whether their buffers are long enough to be read, so all copy them.
TEST_P(Reading, PartsOfAllLengthsReachTheirRanks) {
  run([](RankContext& context) {
    const auto size = static_cast<std::size_t>(context.size());
    const auto own = static_cast<std::size_t>(context.rank());
    const auto count_of = [](std::size_t from, std::size_t to, std::size_t round) {
      constexpr std::size_t kCounts[] = {0, 1, 4095, 4096, 4097, 70'000};
      return kCounts[(5 * from + 3 * to + round) % std::size(kCounts)];
    };
    for (std::size_t round = 0; round < 12; ++round) {
      std::vector<std::vector<float>> sent;
      std::vector<std::vector<float>> received;
      std::vector<ConstSlice> inputs;
      std::vector<Slice> outputs;
      for (std::size_t peer = 0; peer < size; ++peer) {
        sent.emplace_back(count_of(own, peer, round), static_cast<float>(100 * own + peer));
        received.emplace_back(count_of(peer, own, round));
      }
      for (std::size_t peer = 0; peer < size; ++peer) {
        inputs.push_back({sent[peer].data(), sent[peer].size()});
        outputs.push_back({received[peer].data(), received[peer].size()});
      }
      context.channel().all_to_all(inputs, outputs, DType::f32, guarded());
      for (std::size_t peer = 0; peer < size; ++peer) {
        const std::vector<float> expected(received[peer].size(), static_cast<float>(100 * peer + own));
        EXPECT_EQ(received[peer], expected) << "from " << peer << " in round " << round;
      }
    }
  });
}

}  // namespace
}  // namespace gradwire::testing
