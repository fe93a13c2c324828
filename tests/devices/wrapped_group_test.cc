// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Groups that pass calls on show what the group below is for tensors on devices: DDP has lanes over an engine of the
// host, none over an engine that works on streams, and learns of calls that failed on the device.
#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <set>
#include <thread>

#include "gradwire/ddp/device_test_support.h"
#include "gradwire/elastic/elastic_group.h"
#include "gradwire/process_group/device_engine_internal.h"
#include "gradwire/process_group/staged_call_internal.h"
#include "gradwire/testing/fault_injecting_group.h"

namespace gradwire::testing::wrapped_group_test {
namespace {

using Group = std::shared_ptr<ProcessGroup>;

struct Wrapper {
  const char* name;
  Group (*wrap)(const Group& group);
};

const Wrapper kWrappers[] = {
    {"fault_injecting", [](const Group& group) -> Group { return std::make_shared<FaultInjectingGroup>(group); }},
    {"elastic", [](const Group& group) -> Group {
       auto elastic = std::make_shared<ElasticGroup>();
       elastic->move_to(group);
       return elastic;
     }}};

class WrappedGroup : public ::testing::TestWithParam<Wrapper> {
 protected:
  // Whether DDP runs its hooks on the thread of the backward pass.
  static bool hooks_run_on_the_backward_thread(int rank, const Group& group) {
    Layers model(fake_device(rank));
    DistributedDataParallel ddp(model, options_for({"threads", 1, false}, group));
    std::set<std::thread::id> of_gradients, of_hooks;
    for (auto& parameter : model->parameters())
      parameter.register_hook([&](const at::Tensor&) { of_gradients.insert(std::this_thread::get_id()); });
    ddp.register_comm_hook(make_comm_hook(
        [&](GradBucket& bucket) {
          of_hooks.insert(std::this_thread::get_id());
          return bucket.group().all_reduce({bucket.buffer()})->future();
        },
        {.name = "sum", .parallel_safe = true}));
    step_on_fake(ddp, rank);
    return of_hooks == of_gradients;
  }
};

TEST_P(WrappedGroup, OfAnEngineOfTheHostHasLanes) {
  run_ranks({"threads"}, 2, [](int rank, const Group& group) {
    const c10::DeviceGuard here(fake_device(rank));
    const Group wrapped = GetParam().wrap(group);
    EXPECT_TRUE(internal::stages(*wrapped, kFakeDevice));
    EXPECT_FALSE(hooks_run_on_the_backward_thread(rank, wrapped));
    group->barrier()->wait();
  });
  EXPECT_EQ(races(), "");
}

TEST_P(WrappedGroup, OfAnEngineThatWorksOnStreamsHasNone) {
  run_device_ranks(2, [](int rank, const Group& group) {
    const Group wrapped = GetParam().wrap(group);
    EXPECT_FALSE(internal::stages(*wrapped, kFakeDevice));
    EXPECT_TRUE(hooks_run_on_the_backward_thread(rank, wrapped));
    group->barrier()->wait();
  });
  EXPECT_EQ(races(), "");
}

TEST_P(WrappedGroup, TellsOfACallThatFailedAfterItHadReturned) {
  auto faults = std::make_shared<FakeFaults>();
  std::array<std::string, 2> errors;
  run_device_ranks(
      2,
      [&](int rank, const Group& group) {
        const Group wrapped = GetParam().wrap(group);
        Layers model(fake_device(rank));
        DistributedDataParallel ddp(model, options_for({"threads", -1, false}, wrapped));
        step_on_fake(ddp, rank);
        EXPECT_NO_THROW(internal::require_well(*wrapped));
        group->barrier()->wait();
        faults->failing_rank = 0;
        errors[static_cast<std::size_t>(rank)] = error_of([&] { step_on_fake(ddp, rank); });
      },
      faults);
  for (const std::string& error : errors)
    EXPECT_NE(error.find("failed after it had returned"), std::string::npos) << error;
}

INSTANTIATE_TEST_SUITE_P(Wrappers, WrappedGroup, ::testing::ValuesIn(kWrappers),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace gradwire::testing::wrapped_group_test
