// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// DiLoCo with parameters on a device: the numbers are those of the CPU, whichever streams train, and in elastic jobs
// too. Ranks and members are threads with a fake device each.
#include <gtest/gtest.h>

#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "gradwire/ddp/device_test_support.h"
#include "tests/elastic/diloco_workers.h"

namespace gradwire::testing::diloco_device_test {
namespace {

using namespace gradwire::testing::diloco;

// A device of its own, and a stream of the program's there, or the current one.
Place place_on(int index, bool own_stream) {
  Place place{.device = fake_device(index)};
  if (own_stream) place.run = [own = new_stream(place.device)](const auto& work) { run_on(own, work); };
  return place;
}

// The parameters of a worker after some steps of a job in which nothing happens, and the outer parameters.
using Values = std::vector<std::vector<at::Tensor>>;

Values train(int rank, const std::shared_ptr<ProcessGroup>& group, DilocoOptions options, const Place& place) {
  constexpr std::int64_t kSteps = 50;
  options.process_group = group;
  const std::vector<at::Tensor> parameters = weights(place.device);
  const auto diloco = std::make_shared<DilocoAverager>(parameters, options);
  PostLocalSGDOptimizer optimizer(inner_optimizer(parameters), diloco);
  for (std::int64_t step = 0; step < kSteps; ++step) {
    place.run([&] {
      set_gradients(parameters, rank, step);
      optimizer.step();
    });
  }
  diloco->finish_exchanges();
  return {values_of(parameters), values_of(diloco->outer_parameters())};
}

struct Case {
  std::string name;
  DilocoOptions options;
  bool own_stream;
  double tolerance;  // of hooks that compute on the device in another way
};

DilocoOptions with_hook(DilocoOptions options, const std::string& hook) {
  options.hook = hook;
  return options;
}

class DilocoOnDevices : public ::testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(
    Schedules, DilocoOnDevices,
    ::testing::Values(Case{"plain", plain(), false, 0}, Case{"plain_own_stream", plain(), true, 0},
                      Case{"streaming", streaming(), false, 0}, Case{"streaming_own_stream", streaming(), true, 0},
                      Case{"int8", with_hook(streaming(), "int8:memory=error_feedback"), true, 1e-4},
                      Case{"power_sgd", with_hook(plain(), "power_sgd:rank=1,start=2"), true, 1e-4}),
    [](const auto& info) { return info.param.name; });

TEST_P(DilocoOnDevices, TheNumbersAreThoseOfTheCpu) {
  const Case& given = GetParam();
  std::mutex mutex;
  std::map<int, Values> on_devices, on_cpu;
  run_ranks({"threads"}, 3, [&](int rank, const std::shared_ptr<ProcessGroup>& group) {
    const Place place = place_on(rank, given.own_stream);
    const c10::DeviceGuard here(place.device);
    const Values of_device = train(rank, group, given.options, place);
    const Values of_cpu = train(rank, group, given.options, {});
    const std::lock_guard lock(mutex);
    on_devices[rank] = of_device;
    on_cpu[rank] = of_cpu;
  });
  ASSERT_EQ(on_devices.size(), 3U);
  for (int rank = 0; rank < 3; ++rank) {
    for (std::size_t kind = 0; kind < 2; ++kind) {
      for (std::size_t i = 0; i < on_cpu[rank][kind].size(); ++i) {
        const at::Tensor& actual = on_devices[rank][kind][i];
        EXPECT_TRUE(at::allclose(actual, on_cpu[rank][kind][i], given.tolerance, given.tolerance))
            << "rank " << rank << (kind == 0 ? ", parameter " : ", outer parameter ") << i << ": "
            << (actual - on_cpu[rank][kind][i]).abs().max();
      }
    }
  }
  EXPECT_EQ(races(), "");
}

// The third member is lost, and a new one takes its place.
class ElasticDilocoOnDevices : public ::testing::TestWithParam<std::tuple<bool, bool>> {};
INSTANTIATE_TEST_SUITE_P(Jobs, ElasticDilocoOnDevices, ::testing::Combine(::testing::Bool(), ::testing::Bool()));

TEST_P(ElasticDilocoOnDevices, AJobThatLosesAMemberEndsWithTheBitsOfASerialProgram) {
  const auto [streams, own_stream] = GetParam();
  expect_done_again(streams, /*victim=*/2, /*replaced=*/true,
                    [own_stream = own_stream](int worker) { return place_on(worker, own_stream); });
  EXPECT_EQ(races(), "");
}

// Hooks with a part that all workers share: a new worker gets that part.
TEST(ElasticDilocoOnDevicesTest, TheSharedPartOfAHookComesToANewWorker) {
  for (const char* hook : {"int8:memory=ef21", "power_sgd:rank=1,start=2"}) {
    expect_one_outcome_without_a_worker(with_hook(plain(), hook), /*replaced=*/true,
                                        [](int worker) { return place_on(worker, /*own_stream=*/true); });
  }
  EXPECT_EQ(races(), "");
}

// Exchanges that break, also while a hook changes its memory, count once, as on the CPU.
TEST(ElasticDilocoOnDevicesTest, ExchangesThatBreakEndWithTheBitsOfThoseThatDoNot) {
  for (const DilocoOptions& schedule : {plain(), streaming()}) {
    expect_broken_exchanges_count_once(with_hook(schedule, "int8:memory=error_feedback"),
                                       [](int worker) { return place_on(worker, /*own_stream=*/true); });
  }
  EXPECT_EQ(races(), "");
}

}  // namespace
}  // namespace gradwire::testing::diloco_device_test
