// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// DDP with every hook on device buckets over the engines between processes, through staging memory: the numbers are
// those of the CPU over the same engine, no stream is out of order, and no code of the host follows a pointer into the
// memory of the device. Runs on any device (tests/support/test_device.h). The test's own process stays clear of
// autograd, which does not survive a fork, and of the device.
#include <c10/core/StreamGuard.h>

#include "gradwire/hooks/device_training_test_support.h"
#include "tests/support/named_group.h"
#include "tests/support/ranks.h"

namespace gradwire::testing::device_staging_test {
namespace {

struct StagingCase {
  std::string group;
  int world;
};

// shm and hybrid with every number of ranks; the other engines, which stage alike, with few.
std::vector<StagingCase> staging_cases() {
  std::vector<StagingCase> cases;
  std::vector<std::string> names = test_support::network_backends();
  names.insert(names.begin(), "shm");
  const std::string hybrid = ucx_is_built() ? "hybrid/ucx" : "hybrid/gloo";
  for (const std::string& name : names) {
    for (const int world : {1, 2, 3, 4}) {
      const bool all = name == "shm" || name == hybrid;
      if (all || world == 2 || (world == 3 && name == "ucx")) cases.push_back({name, world});
    }
  }
  return cases;
}

class StagedTrainingOver : public ::testing::TestWithParam<StagingCase> {};

TEST_P(StagedTrainingOver, EveryEngineIsThatOfTheCpuWithEveryHook) {
  const auto& [name, world] = GetParam();
  test_support::run_ranks(name, world, [&](int rank, const std::shared_ptr<Store>& store) {
    at::set_num_threads(1);
    const auto group = test_support::make_named_group(name, store, rank, world, std::chrono::seconds(120));
    const c10::Device device = test_device(rank);
    const c10::DeviceGuard here(device);
    const c10::StreamGuard users(new_stream(device));
    for (const DeviceHookCase& each : device_hook_cases()) {
      SCOPED_TRACE(each.name);
      const Trained expected = train(rank, group, at::kCPU, make_hook(each.name));
      const Trained actual = train(rank, group, device, make_hook(each.name));
      expect_same_training(actual, expected, tolerance_here(each.tolerance, world));
      EXPECT_EQ(races(), "");
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Engines, StagedTrainingOver, ::testing::ValuesIn(staging_cases()), [](const auto& info) {
  std::string name = concat(info.param.group, "_", info.param.world);
  std::replace(name.begin(), name.end(), '/', '_');
  return name;
});

// What the tests above rely on: a hook cannot touch the memory of the device from the host and go on.
TEST(StagedTraining, WithAHookThatReadsTheDeviceFromTheHostEndsTheRank) {
  const auto ends = test_support::collect_ranks("shm", 2, [](int rank, const std::shared_ptr<Store>& store) {
    at::set_num_threads(1);
    const auto group = test_support::make_named_group("shm", store, rank, 2, std::chrono::seconds(120));
    const c10::DeviceGuard here(test_device(rank));
    (void)train(rank, group, test_device(rank), make_comm_hook([](GradBucket& bucket) {
                  const at::Tensor gradient = bucket.buffer();
                  const volatile auto* const first = static_cast<const float*>(gradient.const_data_ptr());
                  return *first == 0 ? gradient : gradient.mul(2);
                }));
  });
  for (const test_support::RankEnd& end : ends) EXPECT_EQ(end.message, concat("killed by signal ", SIGSEGV));
}

}  // namespace
}  // namespace gradwire::testing::device_staging_test
