// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// DDP with every hook on device buckets: the numbers are those of the CPU, the streams are in order, and no gradient
// comes to the host. Runs on any device (tests/support/test_device.h).
#include "gradwire/hooks/device_training_test_support.h"

#include <c10/core/StreamGuard.h>

namespace gradwire::testing::device_training_test {
namespace {

constexpr int kMostRanks = 4;

std::vector<Trained> train_on_cpu(int world, const std::string& spec) {
  std::vector<Trained> ends(static_cast<std::size_t>(world));
  run_ranks({"threads"}, world, [&](int rank, const std::shared_ptr<ProcessGroup>& group) {
    ends[static_cast<std::size_t>(rank)] = train(rank, group, at::kCPU, make_hook(spec));
  });
  return ends;
}

class HooksOnDevice : public ::testing::TestWithParam<DeviceHookCase> {
 protected:
  using Run = std::function<void(int world, const DeviceBody& body)>;

  // Trains on the device over the groups of `run`, and on the CPU. Returns the bytes that came to the host before the
  // results were read.
  static std::size_t expect_as_on_the_cpu(int world, const Run& run) {
    const auto& [spec, tolerance] = GetParam();
    const std::vector<Trained> expected = train_on_cpu(world, spec);
    (void)take_bytes_to_host();
    std::size_t to_host = 0;
    run(world, [&](int rank, const std::shared_ptr<ProcessGroup>& group) {
      const c10::Device device = test_device(rank);
      const c10::DeviceGuard here(device);
      const c10::StreamGuard users(new_stream(device));
      const Trained trained = train(rank, group, device, make_hook(spec), [&] {
        if (rank == 0) to_host = take_bytes_to_host().value_or(0);
        group->barrier()->wait();
      });
      expect_same_training(trained, expected[static_cast<std::size_t>(rank)], tolerance_here(tolerance, world));
    });
    EXPECT_EQ(races(), "");
    return to_host;
  }
};

TEST_P(HooksOnDevice, TrainAsOnTheCpuAndKeepGradientsOnTheDevice) {
  for (int world = 1; world <= kMostRanks; ++world) {
    if (on_gpu() && world > 1 && world > device_count()) break;  // NCCL wants a GPU for each rank
    SCOPED_TRACE(concat(world, " ranks"));
    const std::size_t to_host =
        expect_as_on_the_cpu(world, [](int size, const DeviceBody& body) { (void)run_device_ranks(size, body); });
    // PowerSGD's factors come to the host, and nothing as large as the gradients.
    const std::size_t all = static_cast<std::size_t>(kTrainingSteps * world) * kGradientBytes;
    EXPECT_LT(to_host, all / 2);
    const bool by_factors = GetParam().name.find("power_sgd") != std::string::npos;
    EXPECT_TRUE(by_factors || to_host * 20 < all) << to_host;
  }
}

// Over an engine that moves memory of the host, encodings leave the device instead of gradients.
TEST_P(HooksOnDevice, TrainOverAnEngineOfTheHost) {
  const std::string& spec = GetParam().name;
  for (int world = 1; world <= kMostRanks; ++world) {
    if (world > device_count()) break;  // threads cannot share a device; device_staging_test has processes
    SCOPED_TRACE(concat(world, " ranks"));
    const std::size_t to_host =
        expect_as_on_the_cpu(world, [](int size, const DeviceBody& body) { run_ranks({"threads"}, size, body); });
    if (world != 2 || on_gpu()) continue;
    // At the start the parameters of rank 0 travel.
    const std::size_t at_start = 2 * kGradientBytes, all = kTrainingSteps * 2 * kGradientBytes;
    const bool compresses = spec.find("warm_up") == std::string::npos &&
                            (spec.starts_with("int") || spec.starts_with("fp8") || spec.starts_with("sign") ||
                             spec.starts_with("one_bit") || spec.starts_with("top_k"));
    if (compresses) {
      EXPECT_LT(to_host, at_start + all / 2);
    }
    if (spec == "allreduce") {
      EXPECT_GE(to_host, all);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, HooksOnDevice, ::testing::ValuesIn(device_hook_cases()), [](const auto& info) {
  std::string name = info.param.name;
  for (char& letter : name) letter = std::isalnum(static_cast<unsigned char>(letter)) != 0 ? letter : '_';
  return name;
});

}  // namespace
}  // namespace gradwire::testing::device_training_test
