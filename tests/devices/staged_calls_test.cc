// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Engines that move memory of the host take tensors on devices through staging memory. Runs on any device
// (tests/support/test_device.h); the fake one finds copies that nobody waited for.
#include <c10/core/StreamGuard.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>

#include "gradwire/ddp/device_test_support.h"

namespace gradwire::testing::staged_calls_test {
namespace {

at::Tensor numbers(std::int64_t count, int rank) { return at::arange(count, at::kFloat).remainder(7).add_(rank); }

TEST(StagedCalls, GiveTheResultsOfTheCpu) {
  constexpr int kRanks = 3;
  // One piece, and several pieces of 4 MiB of which the last is shorter.
  for (const std::int64_t count : {5, 2'500'001}) {
    run_ranks({"threads"}, kRanks, [&](int rank, const std::shared_ptr<ProcessGroup>& group) {
      const c10::Device device = test_device(rank);
      const c10::DeviceGuard here(device);
      const c10::StreamGuard users(new_stream(device));
      EXPECT_TRUE(group->supports(device.type()));
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

// Calls of one group share its staging memory, whatever their streams and dtypes.
TEST(StagedCalls, FollowOneAnotherOnOtherStreams) {
  constexpr std::int64_t kCount = 1'200'001;  // two pieces of floats, three of doubles
  for (const char* const backend : {"threads", "shm"}) {
    run_ranks({backend}, 2, [&](int rank, const std::shared_ptr<ProcessGroup>& group) {
      const c10::Device device = test_device(rank);
      const c10::DeviceGuard here(device);
      for (int round = 0; round < 6; ++round) {
        const c10::StreamGuard users(new_stream(device));
        const at::ScalarType dtype = round % 2 == 0 ? at::kFloat : at::kDouble;
        const at::Tensor on_cpu = numbers(kCount, rank + round).to(dtype), tensor = on_cpu.to(device);
        group->all_reduce({on_cpu})->wait();
        group->all_reduce({tensor})->wait();
        EXPECT_TRUE(tensor.cpu().equal(on_cpu)) << backend << ", round " << round;
      }
    });
  }
  EXPECT_EQ(races(), "");
}

TEST(StagedCalls, MoveListsOfSmallAndLargeTensors) {
  for (const char* const backend : {"threads", "shm"}) {
    run_ranks({backend}, 2, [&](int rank, const std::shared_ptr<ProcessGroup>& group) {
      const c10::Device device = test_device(rank);
      const c10::DeviceGuard here(device);
      Tensors on_cpu, tensors;
      std::vector<std::int64_t> counts{3, 100'000, 0, 2'000'000, 70};
      counts.insert(counts.end(), 50, 60'000);  // more than a piece together
      for (const std::int64_t count : counts) {
        on_cpu.push_back(numbers(count, rank));
        tensors.push_back(on_cpu.back().to(device));
      }
      group->all_reduce(on_cpu)->wait();
      group->all_reduce(tensors)->wait();
      for (std::size_t i = 0; i < tensors.size(); ++i)
        EXPECT_TRUE(tensors[i].cpu().equal(on_cpu[i])) << backend << ", tensor " << i;
    });
  }
  EXPECT_EQ(races(), "");
}

// The first large call allocates staging memory, which the user knows nothing of.
TEST(StagedCalls, ErrorsOfTheFirstLargeCallNameThatCall) {
  const auto expect_its_name = [](const std::string& error) {
    EXPECT_NE(error.find("all_reduce (call "), std::string::npos) << error;
  };
  std::array<std::string, 2> errors;
  run_ranks({"threads"}, 2, [&](int rank, const std::shared_ptr<ProcessGroup>& group) {
    const c10::DeviceGuard here(test_device(rank));
    const at::Tensor tensor = at::zeros({rank == 0 ? 100'000 : 9'000}, at::TensorOptions(test_device(rank)));
    errors[static_cast<std::size_t>(rank)] = error_of([&] { group->all_reduce({tensor})->wait(); });
  });
  expect_its_name(errors[0]);
  expect_its_name(errors[1]);
  EXPECT_NE(errors[0].find("is for the staging memory of the first large call"), std::string::npos) << errors[0];
  run_ranks({"threads"}, 2, [&](int rank, const std::shared_ptr<ProcessGroup>& group) {
    if (rank == 1) return;
    const c10::DeviceGuard here(test_device(0));
    AllReduceOptions soon;
    soon.timeout = std::chrono::milliseconds(200);
    const at::Tensor tensor = at::zeros({100'000}, at::TensorOptions(test_device(0)));
    errors[0] = error_of([&] { group->all_reduce({tensor}, soon)->wait(); });
  });
  expect_its_name(errors[0]);
}

TEST(StagedCalls, MoveEveryKindOfCall) {
  run_ranks({"threads"}, 2, [&](int rank, const std::shared_ptr<ProcessGroup>& group) {
    const c10::Device device = test_device(rank);
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
  });
  EXPECT_EQ(races(), "");
}

// The copy into the result runs on the stream of the call, and a wait on any other stream follows it.
TEST(StagedCalls, AReceiveOrdersWhoWaitsForIt) {
  run_ranks({"threads"}, 2, [&](int rank, const std::shared_ptr<ProcessGroup>& group) {
    const c10::Device device = test_device(rank);
    const c10::DeviceGuard here(device);
    const c10::StreamGuard users(new_stream(device));
    const at::Tensor received = at::zeros({6}, at::TensorOptions(device));
    const auto receive = group->recv({received}, 1 - rank);
    group->send({numbers(6, rank).to(device)}, 1 - rank)->wait();
    const c10::StreamGuard elsewhere(new_stream(device));
    receive->wait();
    EXPECT_TRUE(received.cpu().equal(numbers(6, 1 - rank)));
    EXPECT_FALSE(receive->future()->devices().empty());
  });
  EXPECT_EQ(races(), "");
}

TEST(StagedCalls, AnErrorOfTheEngineIsTheErrorOfTheCall) {
  std::array<std::string, 2> errors;
  run_ranks({"threads"}, 2, [&](int rank, const std::shared_ptr<ProcessGroup>& group) {
    const c10::DeviceGuard here(test_device(rank));
    if (rank == 1) group->abort("this rank is broken");
    const auto work = group->all_reduce({at::zeros({3'000'000}, at::TensorOptions(test_device(rank)))});
    errors[static_cast<std::size_t>(rank)] = error_of([&] { work->wait(); });
  });
  EXPECT_NE(errors[0].find("this rank is broken"), std::string::npos) << errors[0];
}

// The fake device computes gradients with the CPU's kernels, a GPU with its own.
bool same_gradient(const at::Tensor& one, const at::Tensor& other) {
  return on_gpu() ? at::allclose(one, other, 1e-4, 1e-5) : one.equal(other);
}

// Over such an engine DDP has lanes.
TEST(StagedCalls, CarryDdpWithLanes) {
  const int ranks = std::min(2, device_count());  // threads cannot share a device
  for (const int lanes : {-1, 0, 2}) {
    for (const bool view : {false, true}) {
      std::array<std::vector<at::Tensor>, 2> ends;
      for (const bool on_device : {false, true}) {
        run_ranks({"threads"}, ranks, [&](int rank, const std::shared_ptr<ProcessGroup>& group) {
          const c10::Device device = on_device ? test_device(rank) : c10::Device(at::kCPU);
          const c10::DeviceGuard here(test_device(rank));
          const c10::StreamGuard users(new_stream(test_device(rank)));
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
      for (std::size_t i = 0; i < ends[0].size(); ++i) EXPECT_TRUE(same_gradient(ends[0][i], ends[1][i])) << i;
      EXPECT_EQ(ends[1].size(), 6u);
      EXPECT_EQ(races(), "");
    }
  }
}

}  // namespace
}  // namespace gradwire::testing::staged_calls_test
