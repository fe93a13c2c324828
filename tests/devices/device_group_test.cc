// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Groups for tensors on a device and on the CPU, over an engine that works on streams: who reads or writes memory of a
// device has waited for who wrote it, by events; one communicator serves a group and its duplicates.
#include <c10/core/StreamGuard.h>
#include <gtest/gtest.h>
#include <torch/version.h>

#include "gradwire/ddp/device_test_support.h"
#include "gradwire/ddp/stream_fence_internal.h"
#include "gradwire/process_group/stream_hold_internal.h"
#include "gradwire/process_group/work_internal.h"

namespace gradwire::testing::device_group_test {
namespace {

TEST(DeviceFuture, CarriesTheOrderOfStreams) {
  const c10::Device device = fake_device(0);
  const auto use = [&](const at::Tensor& tensor) { access_on(current_stream(device), tensor, true); };
  const Future future = completed_future(on_fake(0));
  const auto work = completed_work({on_fake(0)});
  const auto second = work_from_future(completed_future(on_fake(0)));
  const auto both = internal::work_of_all({work, second}, internal::Outputs::list({work->result().front()}));
  const auto after = internal::work_after(
      work, [&, tensor = work->result().front()] { use(tensor); }, internal::Outputs::list(work->result()));
  ASSERT_FALSE(future->devices().empty());
  EXPECT_EQ(races(), "");
  const c10::StreamGuard guard(new_stream(device));
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
    EXPECT_FALSE(group->supports(at::kMeta));
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
    access_on(current_stream(tensor.device()), tensor, true);
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
    const c10::StreamGuard guard(new_stream(tensor.device()));
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

// A part of a group has ranks of its own, in the order that its keys say, and so a communicator of its own.
TEST(DeviceGroup, ASplitHasACommunicatorOfItsOwn) {
  const std::size_t communicators = run_device_ranks(3, [](int rank, const std::shared_ptr<ProcessGroup>& group) {
    const auto part = group->split(rank == 1 ? 1 : 0, -rank, "part");  // rank 1; ranks 2 and 0
    ASSERT_NE(part, nullptr);
    EXPECT_EQ(part->size(), rank == 1 ? 1 : 2);
    EXPECT_EQ(part->rank(), rank == 0 ? 1 : 0);
    EXPECT_EQ(part->group_desc(), "part");
    EXPECT_TRUE(part->supports(kFakeDevice) && part->supports(at::kCPU));
    const at::Tensor there = on_fake(rank, {1}).fill_(rank + 1.0), here = at::full({1}, rank + 1.0);
    part->all_reduce({there})->wait();
    part->all_reduce({here})->wait();
    EXPECT_EQ(there.item<float>(), rank == 1 ? 2 : 4);
    EXPECT_EQ(here.item<float>(), rank == 1 ? 2 : 4);
    const at::Tensor first = on_fake(rank, {1}).fill_(rank);
    part->dup()->broadcast({first})->wait();
    EXPECT_EQ(first.item<float>(), rank == 1 ? 1 : 2) << "rank 2 is the first of its part";
    const auto rest = group->split(rank == 0 ? -1 : 0);
    ASSERT_EQ(rest == nullptr, rank == 0);
    if (rest != nullptr) {
      rest->all_reduce({first})->wait();
      EXPECT_EQ(first.item<float>(), 3);
    }
    group->all_reduce({there})->wait();
    EXPECT_EQ(there.item<float>(), 10);
  });
  EXPECT_EQ(communicators, 4u) << "of the group, of two parts, and of the rest";
  EXPECT_EQ(races(), "");
}

#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR > 12
TEST(StagedCall, OfAStreamThatIsCapturedIsRefused) {
  run_ranks({"threads"}, 1, [](int rank, const std::shared_ptr<ProcessGroup>& group) {
    const at::Tensor tensor = on_fake(rank);
    const FakeCapture capture(current_stream(tensor.device()));
    const std::string refused = error_of([&] { group->all_reduce({tensor}); });
    EXPECT_NE(refused.find("captured into a CUDA graph"), std::string::npos) << refused;
  });
  EXPECT_EQ(races(), "");
}
#endif

}  // namespace
}  // namespace gradwire::testing::device_group_test
