// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// DDP on devices, on a device that is not there: who reads or writes memory of a device has waited for who wrote it, by
// events, and what the allocator gets back is used by nobody. docs/devices.md names the rules that these tests show.
#include <c10/core/StreamGuard.h>
#include <gtest/gtest.h>

#include <torch/version.h>
#include <array>
#include <mutex>
#include <set>
#include <thread>

#include "gradwire/ddp/device_test_support.h"
#include "gradwire/ddp/stream_fence_internal.h"
#include "gradwire/process_group/c10d/c10d_store.h"

namespace gradwire::testing::device_test {
namespace {

using internal::StreamFence;

TEST(StreamFence, OrdersTheStreamsThatItKnows) {
  const c10::Device device = fake_device(0);
  StreamFence fence;
  fence.add_current(device);
  fence.add_current(device);
  fence.add_current(at::kCPU);
  {
    const at::Tensor early = on_fake(0);
    const c10::StreamGuard guard(new_stream(device));
    fence.wait();  // nothing is recorded yet
    access_on(current_stream(device), early, true);
  }
  EXPECT_NE(races(), "");
  const at::Tensor tensor = on_fake(0);
  fence.record();
  const c10::StreamGuard guard(new_stream(device));
  fence.wait();
  access_on(current_stream(device), tensor, true);
  internal::keep_for_current_stream(tensor);
  internal::keep_for_current_stream(at::Tensor());
  internal::keep_for_current_stream(at::zeros({1}));
  EXPECT_EQ(races(), "");
}

// Gradients of `steps` steps on the device of each rank, against those of one process with all the inputs.
struct DeviceCase {
  const char* name;
  int lanes;
  bool view;
  enum Hook { none, stages, chained, captured } hook;
};

class DdpOnDevice : public ::testing::TestWithParam<DeviceCase> {};

std::shared_ptr<CommHook> make_hook(DeviceCase::Hook kind, const std::shared_ptr<ProcessGroup>& group,
                                    const std::function<void(const at::Tensor&)>& note) {
  if (kind == DeviceCase::stages) {
    return make_comm_hook(
        [note](GradBucket& bucket) {
          note(bucket.buffer());
          const at::Tensor half = bucket.buffer().to(at::kDouble).div_(bucket.divisor());
          bucket.group().all_reduce({half})->wait();
          const at::Tensor part = half.narrow(0, 0, 1).clone();
          bucket.group().broadcast({part})->wait();
          half.narrow(0, 0, 1).copy_(part);
          return half.to(at::kFloat);
        },
        {.name = "stages", .parallel_safe = true});
  }
  if (kind == DeviceCase::chained) {
    return make_comm_hook([note](GradBucket& bucket) {
      note(bucket.buffer());
      return bucket.group()
          .all_reduce({bucket.buffer()})
          ->future()
          ->then(
              [divisor = bucket.divisor()](c10::ivalue::Future& done) -> c10::IValue {
                return done.value().toTensorVector().front() / divisor;
              },
              c10::TensorType::get());
    });
  }
  return make_comm_hook([note, group](GradBucket& bucket) {
    note(bucket.buffer());
    group->all_reduce({bucket.buffer()})->wait();
    bucket.buffer().div_(bucket.divisor());
    return bucket.buffer();
  });
}

TEST_P(DdpOnDevice, AveragesWithoutARace) {
  constexpr int kRanks = 2, kSteps = 3;
  const DeviceCase param = GetParam();
  std::mutex mutex;
  std::set<std::pair<int, c10::StreamId>> streams_of_hooks;
  run_device_ranks(kRanks, [&](int rank, const std::shared_ptr<ProcessGroup>& group) {
    const c10::Device device = fake_device(rank);
    const c10::StreamGuard users(new_stream(device));
    Layers model(device);
    DdpOptions options = options_for({"threads", param.lanes, param.view}, group);
    options.bucket_cap_mb = 300.0 / (1 << 20);  // a layer a bucket
    DistributedDataParallel ddp(model, options);
    if (param.hook != DeviceCase::none) {
      ddp.register_comm_hook(make_hook(param.hook, group, [&](const at::Tensor& buffer) {
        const std::lock_guard lock(mutex);
        streams_of_hooks.emplace(rank, current_stream(buffer.device()).id());
      }));
    }
    Layers whole;
    for (int step = 0; step < kSteps; ++step) {
      model->zero_grad(step % 2 == 0);
      whole->zero_grad();
      ddp(random_tensor({4, 8}, 10 * step + rank).to(device)).sum().backward();
      for (int each = 0; each < kRanks; ++each)
        (whole->forward(random_tensor({4, 8}, 10 * step + each)).sum() / kRanks).backward();
      const torch::NoGradGuard no_grad;
      std::vector<at::Tensor> actual;
      for (const at::Tensor& gradient : gradients_of(*model)) actual.push_back(gradient.cpu());
      expect_close(actual, gradients_of(*whole), 1e-5);
      for (auto& parameter : model->parameters()) parameter.sub_(parameter.grad(), 0.1);
      for (auto& parameter : whole->parameters()) parameter.sub_(parameter.grad(), 0.1);
    }
    {
      const std::lock_guard lock(mutex);
      EXPECT_FALSE(streams_of_hooks.contains({rank, current_stream(device).id()})) << "a hook ran on the user's stream";
    }
  });
  if (param.hook != DeviceCase::none) {
    EXPECT_GE(streams_of_hooks.size(), static_cast<std::size_t>(kRanks));
  }
  EXPECT_EQ(races(), "");
}

INSTANTIATE_TEST_SUITE_P(All, DdpOnDevice,
                         ::testing::Values(DeviceCase{"plain", -1, false, DeviceCase::none},
                                           DeviceCase{"plain_view", -1, true, DeviceCase::none},
                                           DeviceCase{"plain_no_lane", 0, false, DeviceCase::none},
                                           DeviceCase{"plain_two_lanes", 2, true, DeviceCase::none},
                                           DeviceCase{"stages", -1, false, DeviceCase::stages},
                                           DeviceCase{"stages_view", -1, true, DeviceCase::stages},
                                           DeviceCase{"stages_two_lanes", 2, false, DeviceCase::stages},
                                           DeviceCase{"stages_no_lane", 0, false, DeviceCase::stages},
                                           DeviceCase{"chained", 1, false, DeviceCase::chained},
                                           DeviceCase{"captured", 1, true, DeviceCase::captured}),
                         [](const auto& info) { return std::string(info.param.name); });

// A hook that throws in the midst of its kernels: the gradients are saved from the bucket after those.
TEST(DdpOnDeviceAfterAnError, ReadsNoBucketThatALaneStillWrites) {
  const std::string error = error_of([] {
    run_device_ranks(2, [](int rank, const std::shared_ptr<ProcessGroup>& group) {
      Layers model(fake_device(rank));
      DistributedDataParallel ddp(model, options_for({"threads", 1, true}, group));
      ddp.register_comm_hook(make_comm_hook([](GradBucket& bucket) -> at::Tensor {
        bucket.buffer().mul_(2);
        throw InvalidArgument("this hook is broken");
      }));
      ddp(random_tensor({4, 8}, rank).to(fake_device(rank))).sum().backward();
    });
  });
  EXPECT_NE(error.find("this hook is broken"), std::string::npos) << error;
  EXPECT_EQ(races(), "");
}

// Calls on one device are one sequence: DDP makes no communicator, and runs hooks on the thread of the backward pass,
// in bucket order.
TEST(DdpOnDeviceModel, OneCommunicatorAndOneThread) {
  std::mutex mutex;
  std::vector<std::vector<std::size_t>> order(2);
  const std::size_t communicators = run_device_ranks(2, [&](int rank, const std::shared_ptr<ProcessGroup>& group) {
    const c10::Device device = fake_device(rank);
    Layers model(device), other(device);
    DdpOptions options = options_for({"threads", 2, true}, group);
    options.bucket_cap_mb = 300.0 / (1 << 20);
    DistributedDataParallel ddp(model, options), second(other, options);
    std::set<std::thread::id> of_gradients, of_hooks;
    for (auto& parameter : model->parameters())
      parameter.register_hook([&](const at::Tensor&) { of_gradients.insert(std::this_thread::get_id()); });
    ddp.register_comm_hook(make_comm_hook(
        [&](GradBucket& bucket) {
          of_hooks.insert(std::this_thread::get_id());
          {
            const std::lock_guard lock(mutex);
            order[static_cast<std::size_t>(rank)].push_back(bucket.index());
          }
          return bucket.group().all_reduce({bucket.buffer()})->future();
        },
        {.name = "sum", .parallel_safe = true}));
    const at::Tensor statistics = on_fake(rank, {2});
    for (int number = 0; number < 3; ++number) {
      group->all_reduce({statistics})->wait();
      step_on_fake(ddp, rank, number);
      step_on_fake(second, rank, number);
    }
    EXPECT_EQ(of_hooks, of_gradients);
  });
  EXPECT_EQ(communicators, 1u);
  EXPECT_EQ(order[0], order[1]);
  EXPECT_GE(order[0].size(), 5u) << "one bucket, then several in each of two steps";
  EXPECT_EQ(races(), "");
}

// Found on a GPU: two such ranks waited for each other in backward(), until the deadline.
TEST(DdpOnDeviceModel, ThreadsOfOneProcessWithOneDeviceAreRefusedOnAllRanks) {
  test_device(0);
  std::vector<std::string> errors(3);
  run_ranks({"threads"}, 3, [&](int rank, const std::shared_ptr<ProcessGroup>& group) {
    Layers model(fake_device(rank % 2));
    try {
      DistributedDataParallel ddp(model, options_for({"threads", 1, true}, group));
    } catch (const UnsupportedError& error) {
      errors[static_cast<std::size_t>(rank)] = error.what();
    }
  });
  for (const std::string& error : errors) {
    EXPECT_NE(error.find("ranks 0 and 2 are threads of one process, and both have parameters on device 0"),
              std::string::npos)
        << error;
  }
}

TEST(DdpOnDeviceModel, ARankOnTheCpuBesideOneOnADeviceIsAMismatch) {
  test_device(0);
  const std::string error = error_of([] {
    run_ranks({"threads"}, 2, [](int rank, const std::shared_ptr<ProcessGroup>& group) {
      Layers model(rank == 0 ? c10::Device(at::kCPU) : fake_device(rank));
      DistributedDataParallel ddp(model, options_for({"threads", 1, true}, group));
    });
  });
  EXPECT_NE(error.find("parameters on devices of type cpu on rank 0"), std::string::npos) << error;
}

// The kernels of rank 0 wait for rank 1, which fails. An abort ends them as if all was well.
TEST(DdpOnDeviceModel, AnErrorOfOneRankReachesTheOthersWhoseKernelsWait) {
  auto faults = std::make_shared<FakeFaults>();
  std::array<std::string, 2> errors;
  run_device_ranks(
      2,
      [&](int rank, const std::shared_ptr<ProcessGroup>& group) {
        Layers model(fake_device(rank));
        DistributedDataParallel ddp(model, options_for({"threads", -1, true}, group));
        ddp.register_comm_hook(make_comm_hook([&](GradBucket& bucket) {
          if (bucket.iteration() == 1 && rank == 1) throw InvalidArgument("rank 1 is broken");
          bucket.group().all_reduce({bucket.buffer()})->wait();
          return bucket.buffer();
        }));
        step_on_fake(ddp, rank);
        group->barrier()->wait();
        faults->hang = true;
        errors[static_cast<std::size_t>(rank)] = error_of([&] { step_on_fake(ddp, rank); });
      },
      faults);
  EXPECT_NE(errors[0].find("rank 1 is broken"), std::string::npos) << errors[0];
  EXPECT_NE(errors[1].find("rank 1 is broken"), std::string::npos) << errors[1];
}

// A call fails on the device of one rank, after it has returned.
TEST(DdpOnDeviceModel, AStepThatFailedOnOneDeviceEndsWellOnNone) {
  for (const int failing : {0, 1}) {
    auto faults = std::make_shared<FakeFaults>();
    std::array<std::string, 2> errors;
    run_device_ranks(
        2,
        [&](int rank, const std::shared_ptr<ProcessGroup>& group) {
          Layers model(fake_device(rank));
          DistributedDataParallel ddp(model, options_for({"threads", -1, false}, group));
          step_on_fake(ddp, rank);
          group->barrier()->wait();
          faults->failing_rank = failing;
          errors[static_cast<std::size_t>(rank)] = error_of([&] { step_on_fake(ddp, rank); });
        },
        faults);
    for (const std::string& error : errors) {
      EXPECT_NE(error.find("failed after it had returned"), std::string::npos) << error;
    }
  }
}

// The allocator of a device knows only memory that it has made: record_stream() of a lent gradient would do nothing.
TEST(DdpOnDeviceModel, AGradientMayBeUsedOnAnotherStreamThatTheAllocatorKnows) {
  run_device_ranks(2, [](int rank, const std::shared_ptr<ProcessGroup>& group) {
    const c10::Device device = fake_device(rank);
    Layers model(device);
    DistributedDataParallel ddp(model, options_for({"threads", -1, false}, group));
    const c10::Stream users = new_stream(device);
    for (int number = 0; number < 3; ++number) {
      step_on_fake(ddp, rank, number);
      StreamFence fence;
      fence.add_current(device);
      fence.record();
      {
        const c10::StreamGuard guard(users);
        fence.wait();
        const at::Tensor gradient = model->weights[0].grad();
        internal::keep_for_current_stream(gradient);  // as record_stream() does
        access_on(users, gradient, false);
      }
      model->zero_grad();
    }
  });
  EXPECT_EQ(races(), "");
}

#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR > 12
TEST(DdpOnDeviceModel, AStepInAGraphIsPlainAveraging) {
  run_device_ranks(2, [](int rank, const std::shared_ptr<ProcessGroup>& group) {
    const c10::Device device = fake_device(rank);
    Layers model(device);
    DistributedDataParallel ddp(model, options_for({"threads", -1, true}, group));
    const auto captured_step = [&](DistributedDataParallel<Layers>& wrapped) {
      return error_of([&] {
        const FakeCapture capture(current_stream(device));
        step_on_fake(wrapped, rank);
      });
    };
    step_on_fake(ddp, rank);
    const std::string early = captured_step(ddp);
    EXPECT_NE(early.find("only after two iterations"), std::string::npos) << early;
    step_on_fake(ddp, rank);  // a refusal ends nothing
    model->zero_grad();
    EXPECT_EQ(captured_step(ddp), "");
    const at::Tensor captured = model->weights[0].grad().cpu().clone();
    model->zero_grad();
    step_on_fake(ddp, rank);
    EXPECT_TRUE(captured.equal(model->weights[0].grad().cpu()));

    Layers other(device);
    DistributedDataParallel hooked(other, options_for({"threads", -1, true}, group));
    hooked.register_comm_hook(make_comm_hook([](GradBucket& bucket) { return bucket.buffer(); }, {.name = "mine"}));
    for (int number = 0; number < 2; ++number) step_on_fake(hooked, rank);
    const std::string refused = captured_step(hooked);
    EXPECT_NE(refused.find("it has the hook 'mine'"), std::string::npos) << refused;
  });
  EXPECT_EQ(races(), "");
}
#endif

// A group as PyTorch users have it: with NCCL alone.
TEST(GroupOfNcclAlone, CarriesDdp) {
  constexpr int kRanks = 2;
  fake_device(0);
  auto store = std::make_shared<HashStore>();
  auto meeting = std::make_shared<Meeting>(kRanks);
  std::array<std::vector<at::Tensor>, kRanks> ends;
  run_ranks({"threads"}, kRanks, [&](int rank, const std::shared_ptr<ProcessGroup>& local) {
    const c10::Device device = fake_device(rank);
    const c10::DeviceGuard here(device);
    const auto theirs = c10::make_intrusive<c10d::ProcessGroup>(store_to_c10d(store), rank, kRanks);
    theirs->setBackend(kFakeDevice, c10d::ProcessGroup::BackendType::CUSTOM, make_fake_engine(meeting, rank, kRanks));
    theirs->setDefaultBackend(c10d::ProcessGroup::BackendType::CUSTOM);
    theirs->setGroupName("theirs");
    const auto group = from_c10d(c10::intrusive_ptr<c10d::ProcessGroup>(theirs));
    EXPECT_EQ(group->name(), "nccl");
    EXPECT_TRUE(group->supports(at::kCPU) && group->supports(kFakeDevice));
    Layers model(device);
    DistributedDataParallel ddp(model, options_for({"threads", -1, false}, group));
    step_on_fake(ddp, rank);
    step_on_fake(ddp, rank);
    for (const at::Tensor& gradient : gradients_of(*model))
      ends[static_cast<std::size_t>(rank)].push_back(gradient.cpu());
    const std::string refused = error_of([&] { (void)group->split(0); });
    EXPECT_NE(refused.find("set FromC10dOptions::factory"), std::string::npos) << refused;
    local->barrier()->wait();
  });
  ASSERT_EQ(ends[0].size(), 6u);
  for (std::size_t i = 0; i < ends[0].size(); ++i) EXPECT_TRUE(ends[0][i].equal(ends[1][i])) << i;
  EXPECT_EQ(races(), "");
}

}  // namespace
}  // namespace gradwire::testing::device_test
