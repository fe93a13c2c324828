// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The differentiable collectives between processes, over shared memory.
#include "gradwire/functional/functional_test_support.h"

namespace gradwire::testing::functional_processes_test {
namespace {

class Processes : public ::testing::TestWithParam<int> {};

TEST_P(Processes, GradientsEqualThoseOfTheMeaning) {
  test_support::run_ranks("shm", GetParam(), [](int rank, const std::shared_ptr<Store>& store) {
    const auto group = make_process_group("shm", store, rank, GetParam());
    for (const Case& test : cases()) {
      check(test, group, at::kDouble, 4);
      if (::testing::Test::HasFailure()) return;
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, Processes, ::testing::Values(1, 2, 3));

}  // namespace
}  // namespace gradwire::testing::functional_processes_test
