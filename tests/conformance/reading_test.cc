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

#include <array>
#include <cerrno>
#include <cstddef>
#include <string>
#include <vector>

#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
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
        context.rank() == 1 ? "the kernel did not let this rank read memory of rank 0" : "rank 1 failed";
    EXPECT_NE(message.find(expected), std::string::npos) << message;
  });
}

}  // namespace
}  // namespace gradwire::testing
