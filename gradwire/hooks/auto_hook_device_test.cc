// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The hook "auto" on devices: it measures what the device takes, not what the CPU takes to queue the work.
// On the fake device alone, whose clock the test moves.
#include <gtest/gtest.h>

#include <optional>

#include "gradwire/ddp/device_test_support.h"
#include "gradwire/hooks/auto_hook_internal.h"
#include "gradwire/hooks/hook_test_support.h"
#include "gradwire/hooks/link_test_support.h"
#include "gradwire/process_group/call_group.h"

namespace gradwire::testing::auto_hook_device_test {
namespace {

// A group whose link takes time of the device, and none of the CPU.
class DeviceLinkGroup final : public CallGroup {
 public:
  DeviceLinkGroup(std::shared_ptr<ProcessGroup> inner, double bytes_per_second)
      : CallGroup(inner->rank(), inner->size()), rate(bytes_per_second), inner_(std::move(inner)) {}
  std::string get_backend_name() const override { return "device_link"; }
  bool supports(c10::DeviceType device) const override { return inner_->supports(device); }

  double rate;

 protected:
  std::shared_ptr<Work> do_call(GroupCall& call) override {
    std::optional<c10::Device> device;
    for_each_tensor(call, [&](const at::Tensor& tensor) {
      if (!tensor.is_cpu()) device = tensor.device();
    });
    if (device) spend_on(current_stream(*device), seconds_on_link(call, size(), rate));
    return call_on(*inner_, call, timeout());
  }

 private:
  const std::shared_ptr<ProcessGroup> inner_;
};

void expect_choices_by_the_link_of(int rank, const std::shared_ptr<ProcessGroup>& group) {
  constexpr double kSlow = 10e6, kFast = 10e9;  // bytes a second: int8 is best, plain averaging is best
  const auto link = std::make_shared<DeviceLinkGroup>(group, kSlow);
  double cpu = 0;  // the clock of the CPU, for which all hooks cost the same
  const auto hook = internal::make_auto_hook({}, nullptr, [&cpu] { return cpu; });
  const at::Tensor values = random_tensor({std::int64_t{1} << 18}, rank).to(fake_device(rank));
  std::uint32_t iteration = 0;
  const auto run = [&] {
    cpu += 0.150;
    spend_on(current_stream(values.device()), 0.020);
    GradBucket bucket = bucket_of(values, *link, iteration++);
    hook->run(bucket)->waitAndThrow();
  };
  while (hook->choices().empty() && iteration < 60) run();
  ASSERT_EQ(hook->choices().size(), 1U);
  const HookChoice choice = hook->choices().front();
  EXPECT_EQ(choice.hook, "int8");
  EXPECT_NEAR(choice.measured.front().cost, 0x1p20 / kSlow, 1e-3) << "plain averaging sends 1 MiB";
  for (int i = 0; i < 10; ++i) run();
  link->rate = kFast;
  for (int i = 0; i < 20; ++i) run();
  EXPECT_EQ(hook->current(), "allreduce");
}

TEST(AutoHookOnDevice, MeasuresTheDeviceOverAnEngineOfTheHost) {
  run_ranks({"threads"}, 2, expect_choices_by_the_link_of);
  EXPECT_EQ(races(), "");
}

TEST(AutoHookOnDevice, MeasuresTheDeviceOverAnEngineOfTheDevice) {
  (void)run_device_ranks(2, expect_choices_by_the_link_of);
  EXPECT_EQ(races(), "");
}

}  // namespace
}  // namespace gradwire::testing::auto_hook_device_test
