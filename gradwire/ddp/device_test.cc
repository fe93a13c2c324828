// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Streams of devices, on a device that is not there: who reads or writes memory of a device has waited for who wrote
// it, by events, and what the allocator gets back is used by nobody.
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
#include "gradwire/process_group/stream_hold_internal.h"
#include "gradwire/process_group/work_internal.h"

namespace gradwire::testing::device_test {
namespace {

using internal::StreamFence;

TEST(FakeDevice, SeesWhatNoEventOrders) {
  const c10::Device device = fake_device(0);
  const c10::Stream one = new_fake_stream(device), other = new_fake_stream(device);
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

TEST(StreamFence, OrdersTheStreamsThatItKnows) {
  const c10::Device device = fake_device(0);
  StreamFence fence;
  fence.add_current(device);
  fence.add_current(device);
  fence.add_current(at::kCPU);
  {
    const at::Tensor early = on_fake(0);
    const c10::StreamGuard guard(new_fake_stream(device));
    fence.wait();  // nothing is recorded yet
    access_on(current_fake_stream(device), early, true);
  }
  EXPECT_NE(races(), "");
  const at::Tensor tensor = on_fake(0);
  fence.record();
  const c10::StreamGuard guard(new_fake_stream(device));
  fence.wait();
  access_on(current_fake_stream(device), tensor, true);
  internal::keep_for_current_stream(tensor);
  internal::keep_for_current_stream(at::Tensor());
  internal::keep_for_current_stream(at::zeros({1}));
  EXPECT_EQ(races(), "");
}

TEST(DeviceFuture, CarriesTheOrderOfStreams) {
  const c10::Device device = fake_device(0);
  const auto use = [&](const at::Tensor& tensor) { access_on(current_fake_stream(device), tensor, true); };
  const Future future = completed_future(on_fake(0));
  const auto work = completed_work({on_fake(0)});
  const auto second = work_from_future(completed_future(on_fake(0)));
  const auto both = internal::work_of_all({work, second}, internal::Outputs::list({work->result().front()}));
  const auto after = internal::work_after(
      work, [&, tensor = work->result().front()] { use(tensor); }, internal::Outputs::list(work->result()));
  ASSERT_FALSE(future->devices().empty());
  EXPECT_EQ(races(), "");
  const c10::StreamGuard guard(new_fake_stream(device));
  second->wait();
  future->waitAndThrow();
  use(future->value().toTensor());
  both->wait();
  after->wait();
  use(both->result().front());
  use(second->future()->value().toTensor());
  EXPECT_EQ(races(), "");
}

// What holds up a CUDA stream until the CPU lets it go.
class Hold final : public c10d::cuda::StreamBlock {
 public:
  explicit Hold(std::shared_ptr<int> ends) : ends_(std::move(ends)) {}
  void abort() override { ++*ends_; }
  c10d::cuda::StreamBlockStatus status() override { return c10d::cuda::RUNNING; }

 private:
  const std::shared_ptr<int> ends_;
};

TEST(StreamHold, LastsUntilTheFutureEndsWhateverBecomesOfTheWork) {
  for (const bool well : {true, false}) {
    auto future = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::ofTensors());
    auto work = work_from_future(future);
    auto ends = std::make_shared<int>(0);
    EXPECT_TRUE(internal::hold_current_stream(work->future(), [&] { return std::make_shared<Hold>(ends); }));
    work.reset();
    EXPECT_EQ(*ends, 0);
    well ? future->markCompleted(std::vector<at::Tensor>{})
         : future->setError(std::make_exception_ptr(PeerError("gone", {})));
    EXPECT_EQ(*ends, 1);
    EXPECT_FALSE(internal::hold_current_stream(future, [&] { return std::make_shared<Hold>(ends); }));
  }
}

TEST(DeviceGroup, SendsEachCallWhereItsTensorsAre) {
  run_device_ranks(2, [](int rank, const std::shared_ptr<ProcessGroup>& group) {
    EXPECT_TRUE(group->supports(at::kCPU) && group->supports(kFakeDevice));
    EXPECT_FALSE(group->supports(at::kCUDA));
    at::Tensor here = at::full({4}, rank + 1.0), there = on_fake(rank, {4}).fill_(rank + 1.0);
    group->all_reduce({here})->wait();
    const auto work = group->all_reduce({there});
    // Before wait() the caller's stream does not follow the engine's.
    work->wait();
    there.add_(1);
    EXPECT_EQ(here.sum().item<float>(), 12);
    EXPECT_EQ(there.cpu().sum().item<float>(), 16);
    EXPECT_TRUE(work->is_completed() && work->is_success());
    group->barrier()->wait();
    const std::string mixed = error_of([&] { group->all_reduce({here, there}); });
    EXPECT_NE(mixed.find("all tensors of a call must be in one place"), std::string::npos) << mixed;
    const std::string strange = error_of([&] { group->all_reduce({at::empty({1}, at::kMeta)}); });
    EXPECT_NE(strange.find("does not serve"), std::string::npos) << strange;
  });
  EXPECT_EQ(races(), "");
}

TEST(DeviceGroup, AWorkNotWaitedForOrdersNothing) {
  run_device_ranks(2, [](int rank, const std::shared_ptr<ProcessGroup>& group) {
    const at::Tensor tensor = on_fake(rank);
    const auto work = group->all_reduce({tensor});
    access_on(current_fake_stream(tensor.device()), tensor, true);
    work->wait();
  });
  EXPECT_NE(races(), "");
}

TEST(DeviceGroup, AFutureOfAWorkOrdersWhoWaitsForIt) {
  run_device_ranks(2, [](int rank, const std::shared_ptr<ProcessGroup>& group) {
    const at::Tensor tensor = on_fake(rank);
    const Future doubled = group->all_reduce({tensor})->future()->then(
        [](c10::ivalue::Future& done) -> c10::IValue { return done.value().toTensorVector().front() * 2; },
        c10::TensorType::get());
    const c10::StreamGuard guard(new_fake_stream(tensor.device()));
    doubled->waitAndThrow();
    doubled->value().toTensor().add_(tensor);
    internal::keep_for_current_stream(tensor);  // the caller's own, from another stream
  });
  EXPECT_EQ(races(), "");
}

// NCCL may deadlock when a device has calls of several communicators under way.
TEST(DeviceGroup, DuplicatesShareTheCommunicatorOfTheirGroup) {
  const std::size_t communicators = run_device_ranks(3, [](int rank, const std::shared_ptr<ProcessGroup>& group) {
    const auto duplicate = group->dup();
    ASSERT_NE(duplicate, nullptr);
    const at::Tensor tensor = on_fake(rank, {1}).fill_(rank);
    duplicate->all_reduce({tensor})->wait();
    EXPECT_EQ(tensor.item<float>(), 3);
    EXPECT_EQ(duplicate->name(), "nccl");
    const at::Tensor whole = on_fake(rank, {3});
    duplicate->all_gather_into_tensor(whole, on_fake(rank, {1}).fill_(rank))->wait();
    EXPECT_TRUE(whole.cpu().equal(at::arange(3, at::kFloat)));
    const auto again = duplicate->dup();
    again->all_reduce({tensor})->wait();
    EXPECT_EQ(tensor.item<float>(), 9);
    // On the CPU each group has an order of its own.
    const at::Tensor mine = at::ones({1}), of_duplicate = at::ones({1});
    const auto first = rank == 0 ? group->all_reduce({mine}) : duplicate->all_reduce({of_duplicate});
    const auto second = rank == 0 ? duplicate->all_reduce({of_duplicate}) : group->all_reduce({mine});
    first->wait();
    second->wait();
    EXPECT_EQ(mine.item<float>() + of_duplicate.item<float>(), 6);
    // The end of a duplicate is not that of its group.
    again->shutdown();
    group->all_reduce({tensor})->wait();
    EXPECT_EQ(tensor.item<float>(), 27);
  });
  EXPECT_EQ(communicators, 1u);
  EXPECT_EQ(races(), "");
}

TEST(DeviceGroup, ADuplicateThatIsAbortedEndsTheCallsOnTheDevice) {
  run_device_ranks(2, [](int rank, const std::shared_ptr<ProcessGroup>& group) {
    const auto duplicate = group->dup();
    if (rank == 1) duplicate->abort("this rank is broken");
    const at::Tensor tensor = on_fake(rank, {1});
    EXPECT_NE(error_of([&] { group->all_reduce({tensor})->wait(); }), "");
  });
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
    const c10::StreamGuard users(new_fake_stream(device));
    Layers model(device);
    DdpOptions options = options_for({"threads", param.lanes, param.view}, group);
    options.bucket_cap_mb = 300.0 / (1 << 20);  // a layer a bucket
    DistributedDataParallel ddp(model, options);
    if (param.hook != DeviceCase::none) {
      ddp.register_comm_hook(make_hook(param.hook, group, [&](const at::Tensor& buffer) {
        const std::lock_guard lock(mutex);
        streams_of_hooks.emplace(rank, current_fake_stream(buffer.device()).id());
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
      EXPECT_FALSE(streams_of_hooks.contains({rank, current_fake_stream(device).id()}))
          << "a hook ran on the user's stream";
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

// One step of `ddp` on this rank's device.
void step(DistributedDataParallel<Layers>& ddp, int rank, int seed = 0) {
  ddp(random_tensor({4, 8}, 10 * seed + rank).to(fake_device(rank))).sum().backward();
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
      step(ddp, rank, number);
      step(second, rank, number);
    }
    EXPECT_EQ(of_hooks, of_gradients);
  });
  EXPECT_EQ(communicators, 1u);
  EXPECT_EQ(order[0], order[1]);
  EXPECT_GE(order[0].size(), 5u) << "one bucket, then several in each of two steps";
  EXPECT_EQ(races(), "");
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
        step(ddp, rank);
        group->barrier()->wait();
        faults->hang = true;
        errors[static_cast<std::size_t>(rank)] = error_of([&] { step(ddp, rank); });
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
          step(ddp, rank);
          group->barrier()->wait();
          faults->failing_rank = failing;
          errors[static_cast<std::size_t>(rank)] = error_of([&] { step(ddp, rank); });
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
    const c10::Stream users = new_fake_stream(device);
    for (int number = 0; number < 3; ++number) {
      step(ddp, rank, number);
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
        const FakeCapture capture(current_fake_stream(device));
        step(wrapped, rank);
      });
    };
    step(ddp, rank);
    const std::string early = captured_step(ddp);
    EXPECT_NE(early.find("only after two iterations"), std::string::npos) << early;
    step(ddp, rank);  // a refusal ends nothing
    model->zero_grad();
    EXPECT_EQ(captured_step(ddp), "");
    const at::Tensor captured = model->weights[0].grad().cpu().clone();
    model->zero_grad();
    step(ddp, rank);
    EXPECT_TRUE(captured.equal(model->weights[0].grad().cpu()));

    Layers other(device);
    DistributedDataParallel hooked(other, options_for({"threads", -1, true}, group));
    hooked.register_comm_hook(make_comm_hook([](GradBucket& bucket) { return bucket.buffer(); }, {.name = "mine"}));
    for (int number = 0; number < 2; ++number) step(hooked, rank);
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
    step(ddp, rank);
    step(ddp, rank);
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

// Engines that move memory of the host take tensors on devices through staging memory.
at::Tensor numbers(std::int64_t count, int rank) { return at::arange(count, at::kFloat).remainder(7).add_(rank); }

TEST(StagedCalls, GiveTheResultsOfTheCpu) {
  constexpr int kRanks = 3;
  // One piece, and several pieces of 4 MiB of which the last is shorter.
  for (const std::int64_t count : {5, 2'500'001}) {
    run_ranks({"threads"}, kRanks, [&](int rank, const std::shared_ptr<ProcessGroup>& group) {
      const c10::Device device = fake_device(rank);
      const c10::DeviceGuard here(device);
      const c10::StreamGuard users(new_fake_stream(device));
      EXPECT_TRUE(group->supports(kFakeDevice));
      const at::Tensor on_cpu = numbers(count, rank), tensor = on_cpu.to(device);
      group->all_reduce({on_cpu})->wait();
      group->all_reduce({tensor})->wait();
      EXPECT_TRUE(tensor.cpu().equal(on_cpu));
      const at::Tensor sent = numbers(count, rank).to(device);
      BroadcastOptions from_one;
      from_one.root = 1;
      group->broadcast({sent}, from_one)->wait();
      EXPECT_TRUE(sent.cpu().equal(numbers(count, 1)));
      ReduceOptions to_two;
      to_two.root = 2;
      const at::Tensor reduced = numbers(count, rank).to(device);
      group->reduce({reduced}, to_two)->wait();
      EXPECT_TRUE(reduced.cpu().equal(rank == 2 ? on_cpu : numbers(count, rank)));
    });
  }
  EXPECT_EQ(races(), "");
}

TEST(StagedCalls, MoveEveryKindOfCall) {
  run_ranks({"threads"}, 2, [&](int rank, const std::shared_ptr<ProcessGroup>& group) {
    const c10::Device device = fake_device(rank);
    const c10::DeviceGuard here(device);
    const auto on_device = [&](int of) { return numbers(6, of).to(device); };
    const auto fresh = [&](std::int64_t count) { return at::zeros({count}, at::TensorOptions(device)); };
    const auto same = [](const at::Tensor& one, const at::Tensor& other) { return one.cpu().equal(other.cpu()); };
    const at::Tensor both = at::cat({numbers(6, 0), numbers(6, 1)}), sum = numbers(6, 0) + numbers(6, 1);
    at::Tensor whole = fresh(12), part = fresh(3);
    group->all_gather_into_tensor(whole, on_device(rank))->wait();
    EXPECT_TRUE(same(whole, both));
    const Tensors list{fresh(6), fresh(6)};
    const auto gathered = group->all_gather({list}, {on_device(rank)});
    gathered->wait();
    EXPECT_TRUE(same(at::cat(list), both));
    EXPECT_TRUE(same(gathered->future()->value().toTensorVector().back(), numbers(6, 1)));
    group->reduce_scatter_tensor(part, on_device(rank))->wait();
    EXPECT_TRUE(same(part, sum.narrow(0, 3 * rank, 3)));
    group->all_to_all_single(whole, at::cat({on_device(0), on_device(1)}))->wait();
    EXPECT_TRUE(
        same(whole, rank == 0 ? at::cat({numbers(6, 0), numbers(6, 0)}) : at::cat({numbers(6, 1), numbers(6, 1)})));
    ScatterOptions from_one;
    from_one.root = 1;
    const at::Tensor mine = fresh(6);
    group
        ->scatter({mine}, rank == 1 ? std::vector<Tensors>{{on_device(0), on_device(1)}} : std::vector<Tensors>{},
                  from_one)
        ->wait();
    EXPECT_TRUE(same(mine, numbers(6, rank)));
    const at::Tensor received = fresh(6);
    const auto receive = group->recv({received}, 1 - rank);
    group->send({on_device(rank)}, 1 - rank)->wait();
    receive->wait();
    EXPECT_TRUE(same(received, numbers(6, 1 - rank)));
    // Not contiguous, and of a type that has no reduction of its own.
    const at::Tensor square = fresh(12).view({3, 4}), turned = square.t();
    turned.fill_(rank + 1.0);
    group->all_reduce({turned})->wait();
    EXPECT_TRUE(same(square, at::full({3, 4}, 3.0f)));
    group->barrier()->wait();
    const FakeCapture capture(current_fake_stream(device));
    const std::string refused = error_of([&] { group->all_reduce({received}); });
    EXPECT_NE(refused.find("captured into a CUDA graph"), std::string::npos) << refused;
  });
  EXPECT_EQ(races(), "");
}

// The copy into the result runs on the stream of the call, and a wait on any other stream follows it.
TEST(StagedCalls, AReceiveOrdersWhoWaitsForIt) {
  run_ranks({"threads"}, 2, [&](int rank, const std::shared_ptr<ProcessGroup>& group) {
    const c10::Device device = fake_device(rank);
    const c10::DeviceGuard here(device);
    const c10::StreamGuard users(new_fake_stream(device));
    const at::Tensor received = at::zeros({6}, at::TensorOptions(device));
    const auto receive = group->recv({received}, 1 - rank);
    group->send({numbers(6, rank).to(device)}, 1 - rank)->wait();
    const c10::StreamGuard elsewhere(new_fake_stream(device));
    receive->wait();
    EXPECT_TRUE(received.cpu().equal(numbers(6, 1 - rank)));
    EXPECT_FALSE(receive->future()->devices().empty());
  });
  EXPECT_EQ(races(), "");
}

TEST(StagedCalls, AnErrorOfTheEngineIsTheErrorOfTheCall) {
  std::array<std::string, 2> errors;
  run_ranks({"threads"}, 2, [&](int rank, const std::shared_ptr<ProcessGroup>& group) {
    const c10::DeviceGuard here(fake_device(rank));
    if (rank == 1) group->abort("this rank is broken");
    const auto work = group->all_reduce({on_fake(rank, {3'000'000})});
    errors[static_cast<std::size_t>(rank)] = error_of([&] { work->wait(); });
  });
  EXPECT_NE(errors[0].find("this rank is broken"), std::string::npos) << errors[0];
}

// Over such an engine DDP has lanes.
TEST(StagedCalls, CarryDdpWithLanes) {
  for (const int lanes : {-1, 0, 2}) {
    for (const bool view : {false, true}) {
      std::array<std::vector<at::Tensor>, 2> ends;
      for (const bool on_device : {false, true}) {
        run_ranks({"threads"}, 2, [&](int rank, const std::shared_ptr<ProcessGroup>& group) {
          const c10::Device device = on_device ? fake_device(rank) : c10::Device(at::kCPU);
          const c10::DeviceGuard here(fake_device(rank));
          const c10::StreamGuard users(new_fake_stream(fake_device(rank)));
          Layers model(device);
          DdpOptions options = options_for({"threads", lanes, view}, group);
          options.bucket_cap_mb = 300.0 / (1 << 20);
          DistributedDataParallel ddp(model, options);
          for (int number = 0; number < 3; ++number) {
            model->zero_grad();
            ddp(random_tensor({4, 8}, 10 * number + rank).to(device)).sum().backward();
          }
          if (rank == 0) {
            for (const at::Tensor& gradient : gradients_of(*model)) ends[on_device ? 1 : 0].push_back(gradient.cpu());
          }
          group->barrier()->wait();
        });
      }
      for (std::size_t i = 0; i < ends[0].size(); ++i) EXPECT_TRUE(ends[0][i].equal(ends[1][i])) << i;
      EXPECT_EQ(ends[1].size(), 6u);
      EXPECT_EQ(races(), "");
    }
  }
}

}  // namespace
}  // namespace gradwire::testing::device_test
