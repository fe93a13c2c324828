// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// What the tests of devices rely on: the fake device finds races, accesses of the host, copies of gradients and copies
// that nobody waited for. Each is planted here, by itself and in a hook of DDP.
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>

#include "gradwire/ddp/device_test_support.h"
#include "gradwire/hooks/registry.h"

namespace gradwire::testing::fake_device_test {
namespace {

TEST(FakeDevice, SeesWhatNoEventOrders) {
  const c10::Device device = fake_device(0);
  const c10::Stream one = new_stream(device), other = new_stream(device);
  const at::Tensor tensor = on_fake(0);
  EXPECT_EQ(races(), "");
  access_on(one, tensor, false);
  EXPECT_NE(races(), "") << "zeros() wrote on the default stream";
  access_on(other, tensor, true);
  EXPECT_NE(races(), "");
  {
    const c10::StreamGuard guard(one);
    const at::Tensor used = on_fake(0);
    const c10::StreamGuard elsewhere(other);
    access_on(other, used, false);
  }
  EXPECT_NE(races().find("freed"), std::string::npos);
}

float first_value(const at::Tensor& tensor) {
  const volatile auto* const value = static_cast<const float*>(tensor.const_data_ptr());
  return *value;
}

TEST(FakeDeviceMemory, FaultsWhenTheHostTouchesIt) {
  ::testing::GTEST_FLAG(death_test_style) = "threadsafe";
  EXPECT_EXIT(std::exit(first_value(on_fake(0)) == 0 ? 1 : 2), ::testing::KilledBySignal(SIGSEGV), "");
}

TEST(FakeDeviceMemory, CountsWhatIsCopiedToTheHost) {
  (void)take_fake_bytes_to_host();
  run_device_ranks(1, [](int, const std::shared_ptr<ProcessGroup>& group) {
    GradBucket bucket = [&] {
      auto layout = std::make_shared<BucketLayout>();
      const at::Tensor gradient = on_fake(0, {100});
      layout->device = gradient.device();
      layout->append(0, gradient, gradient, "p");
      return GradBucket(layout, gradient, *group, 1, true);
    }();
    (void)result_of(*make_hook("int8"), bucket);
    EXPECT_EQ(take_fake_bytes_to_host(), 0u);
    const auto copies =
        make_comm_hook([](GradBucket& given) { return given.buffer().cpu().to(given.buffer().device()); });
    (void)result_of(*copies, bucket);
    EXPECT_EQ(take_fake_bytes_to_host(), 400u);
  });
}

void follow(const c10::Stream& stream, const c10::Stream& before) {
  c10::Event event(kFakeDevice);
  event.record(before);
  event.block(stream);
}

struct PlantedHook {
  const char* name;
  at::Tensor (*run)(GradBucket& bucket);
  bool sound = false;
};

const PlantedHook kPlanted[] = {
    {"sound",
     [](GradBucket& bucket) {
       bucket.group().all_reduce({bucket.buffer()})->wait();
       return bucket.buffer();
     },
     true},
    {"reads_before_the_gradient_is_written",
     [](GradBucket& bucket) {
       const c10::StreamGuard guard(new_stream(bucket.buffer().device()));
       return bucket.buffer().mul(2);
     }},
    {"gives_a_result_of_another_stream",
     [](GradBucket& bucket) {
       const c10::Stream here = current_stream(bucket.buffer().device());
       const c10::StreamGuard guard(new_stream(bucket.buffer().device()));
       follow(guard.current_stream(), here);
       return bucket.buffer().mul_(2);
     }},
    {"lets_memory_go_that_another_stream_reads",
     [](GradBucket& bucket) {
       const c10::Stream side = new_stream(bucket.buffer().device());
       const at::Tensor copy = bucket.buffer().clone();
       follow(side, current_stream(copy.device()));
       access_on(side, copy, false);
       return bucket.buffer();
     }},
    // The collectives of a hook run on the hook's stream, or have ended when they return.
    {"does_not_wait_for_its_collective",
     [](GradBucket& bucket) {
       const auto work = bucket.group().all_reduce({bucket.buffer()});
       return bucket.buffer().div_(2);
     },
     true},
};

class PlantedRace : public ::testing::TestWithParam<PlantedHook> {
 protected:
  void SetUp() override { (void)races(); }
  static void train(int rank, const std::shared_ptr<ProcessGroup>& group) {
    const c10::DeviceGuard here(fake_device(rank));
    const c10::StreamGuard users(new_stream(fake_device(rank)));
    Layers model(fake_device(rank));
    DistributedDataParallel ddp(model, options_for({"threads", -1, false}, group));
    ddp.register_comm_hook(make_comm_hook([](GradBucket& bucket) { return GetParam().run(bucket); }));
    for (int number = 0; number < 3; ++number) step_on_fake(ddp, rank, number);
    group->barrier()->wait();
  }
};

TEST_P(PlantedRace, IsFoundOverAnEngineThatWorksOnStreams) {
  run_device_ranks(2, &train);
  EXPECT_EQ(races().empty(), GetParam().sound);
}

TEST_P(PlantedRace, IsFoundOverAnEngineOfTheHost) {
  run_ranks({"threads"}, 2, &train);
  EXPECT_EQ(races().empty(), GetParam().sound);
}

INSTANTIATE_TEST_SUITE_P(Hooks, PlantedRace, ::testing::ValuesIn(kPlanted),
                         [](const auto& info) { return std::string(info.param.name); });

// A group that stages as gradwire's groups do. Without `waits` the host sends what the device has not brought yet.
class Stager final : public ProcessGroup {
 public:
  Stager(std::shared_ptr<ProcessGroup> engine, bool waits)
      : ProcessGroup(engine->rank(), engine->size()), engine_(std::move(engine)), waits_(waits) {}
  bool supports(c10::DeviceType device) const override { return device == kFakeDevice; }

 protected:
  std::shared_ptr<Work> do_all_reduce(Tensors& tensors, const AllReduceOptions&) override {
    const at::Tensor memory = at::empty(tensors[0].sizes(), at::kFloat);
    memory.copy_(tensors[0], /*non_blocking=*/true);
    if (waits_) {
      c10::Event event(kFakeDevice);
      event.record(current_stream(tensors[0].device()));
      event.synchronize();
    }
    engine_->all_reduce({memory})->wait();
    tensors[0].copy_(memory);
    return completed_work(tensors);
  }

 private:
  const std::shared_ptr<ProcessGroup> engine_;
  const bool waits_;
};

TEST(PlantedFault, AStagerThatDoesNotWaitForItsCopyGivesAnotherSum) {
  for (const bool waits : {true, false}) {
    run_ranks({"threads"}, 2, [&](int rank, const std::shared_ptr<ProcessGroup>& engine) {
      const c10::DeviceGuard here(fake_device(rank));
      const at::Tensor tensor = on_fake(rank, {4}).fill_(rank + 1.0);
      const auto group = std::make_shared<Stager>(engine, waits);
      group->all_reduce({tensor})->wait();
      EXPECT_EQ(tensor.cpu().equal(at::full({4}, 3.0f)), waits);
    });
  }
}

}  // namespace
}  // namespace gradwire::testing::fake_device_test
