// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// A process ends well whatever goes first: the DDP object, its group, or main().
#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>

#include "gradwire/ddp/ddp_test_support.h"

namespace gradwire::testing::ddp_exit_test {
namespace {

using Wrapped = DistributedDataParallel<Mlp>;

// Made before the runtime's own statics, and so destroyed after them.
std::unique_ptr<Wrapped> of_the_program;

std::unique_ptr<Wrapped> trained() {
  InitOptions init;
  init.backend = "shm";
  init.store = std::make_shared<HashStore>();
  init.rank = 0;
  init.world_size = 1;
  DdpOptions options;
  options.process_group = init_process_group(init);
  options.lanes = 2;
  auto ddp = std::make_unique<Wrapped>(Mlp(), options);
  // With a hook one rank alone uses its lanes too.
  ddp->register_comm_hook([](GradBucket& bucket) { return bucket.buffer(); }, HookTraits{.parallel_safe = true});
  for (int step = 0; step < 3; ++step) (*ddp)(random_tensor({2, 8}, step)).sum().backward();
  return ddp;
}

class DdpExit : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
  // Whether destroy_process_group() is called before the end.
  static void maybe_destroy_group() {
    if (GetParam()) destroy_process_group();
  }
};
INSTANTIATE_TEST_SUITE_P(All, DdpExit, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "GroupDestroyed" : "GroupLeft"; });

TEST_P(DdpExit, WithAStaticThatIsOlderThanTheGroup) {
  EXPECT_EXIT(
      {
        of_the_program = trained();
        maybe_destroy_group();
        std::exit(0);
      },
      ::testing::ExitedWithCode(0), "");
}

TEST_P(DdpExit, WithAStaticThatIsYoungerThanTheGroup) {
  EXPECT_EXIT(
      {
        static std::unique_ptr<Wrapped> younger = trained();
        maybe_destroy_group();
        std::exit(0);
      },
      ::testing::ExitedWithCode(0), "");
}

TEST_P(DdpExit, WithAnUnfinishedReduction) {
  EXPECT_EXIT(
      {
        of_the_program = trained();
        Mlp net = of_the_program->module();
        const at::Tensor used = net->linears[2](random_tensor({2, 8}, 0));
        (*of_the_program)(random_tensor({2, 8}, 1));
        used.sum().backward();  // reaches some of the parameters
        maybe_destroy_group();
        std::exit(0);
      },
      ::testing::ExitedWithCode(0), "");
}

// No destructor runs: threads are where they are.
TEST_P(DdpExit, WithoutDestructors) {
  EXPECT_EXIT(
      {
        of_the_program = trained();
        maybe_destroy_group();
        std::_Exit(0);
      },
      ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace gradwire::testing::ddp_exit_test
