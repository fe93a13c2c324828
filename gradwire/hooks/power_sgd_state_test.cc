// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The options of PowerSGD, and its state as it is saved and loaded.
#include <functional>
#include <limits>

#include "gradwire/base/error.h"
#include "gradwire/base/log.h"
#include "gradwire/hooks/power_sgd.h"
#include "gradwire/hooks/power_sgd_internal.h"
#include "gradwire/hooks/power_sgd_test_support.h"

namespace gradwire::testing::power_sgd_test::state {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

std::string error_with(const std::function<void(PowerSGDOptions&)>& change) {
  PowerSGDOptions options;
  change(options);
  try {
    PowerSGDState state(options);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "";
}

TEST(PowerSgdOptions, RefuseWhatCannotBe) {
  EXPECT_EQ(error_with([](auto&) {}), "");
  EXPECT_NE(error_with([](auto& o) { o.matrix_approximation_rank = 0; }).find("matrix_approximation_rank"),
            std::string::npos);
  EXPECT_NE(error_with([](auto& o) { o.min_compression_rate = -1; }).find("min_compression_rate"), std::string::npos);
  EXPECT_NE(error_with([](auto& o) { o.orthogonalization_epsilon = kNan; }).find("epsilon"), std::string::npos);
  EXPECT_NE(error_with([](auto& o) { o.start_iteration = -1; }).find("start_iteration"), std::string::npos);
  EXPECT_NE(error_with([](auto& o) { o.start_iteration = 1; }).find("use_error_feedback"), std::string::npos);
  EXPECT_NE(error_with([](auto& o) { o.start_iteration = 1, o.use_error_feedback = false; }).find("warm_start"),
            std::string::npos);
  EXPECT_EQ(error_with([](auto& o) { o.start_iteration = 0, o.use_error_feedback = o.warm_start = false; }), "");
  EXPECT_THROW((void)make_power_sgd_hook(std::shared_ptr<PowerSGDState>()), InvalidArgument);
}

TEST(PowerSgdState, ResumesWithTheSameBits) {
  for (const bool warm : {true, false}) {
    for (const bool batched : {false, true}) {
      EchoGroup group(2);
      auto options = options_of(2);
      options.warm_start = warm;
      const auto make = [&] { return batched ? make_batched_power_sgd_hook(options) : make_power_sgd_hook(options); };
      const auto straight = make();
      const auto first = make();
      const auto second = make();
      const auto step = [&](CommHook& hook, std::uint32_t iteration, std::uint32_t counted) {
        std::vector<at::Tensor> all;
        for (const std::size_t index : {std::size_t{0}, std::size_t{1}}) {
          auto gradients = mixed_gradients(static_cast<int>(20 * iteration + 10 * index));
          for (auto& named : gradients) named.name += std::to_string(index);
          for (const auto& tensor : run_hook(hook, group, gradients, counted, index, index == 1)) all.push_back(tensor);
        }
        return all;
      };
      for (std::uint32_t i = 0; i < 5; ++i) {
        const auto expected = step(*straight, i, i);
        EXPECT_TRUE(same_bits(step(*first, i, i), expected));
      }
      second->load_state_dict(first->state_dict());
      // DDP counts from 0 again after a restart.
      for (std::uint32_t i = 5; i < 10; ++i)
        EXPECT_TRUE(same_bits(step(*second, i, i - 5), step(*straight, i, i))) << i;
    }
  }
}

TEST(PowerSgdState, IsACopy) {
  EchoGroup group;
  const auto hook = make_power_sgd_hook(options_of(2));
  skip_start(hook, group, mixed_gradients(1), 4);
  const HookState saved = hook->state_dict();
  const at::Tensor error = saved.at("local/error/a.weight").toTensor().clone();
  (void)run_hook(*hook, group, mixed_gradients(2), 4);
  EXPECT_TRUE(saved.at("local/error/a.weight").toTensor().equal(error));
  EXPECT_EQ(saved.at("q/a.weight").toTensor().sizes(), at::IntArrayRef({2, 20}));
}

std::string load_error(CommHook& hook, const HookState& state) {
  try {
    hook.load_state_dict(state);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "";
}

TEST(PowerSgdState, LoadingAnothersStateSaysWhatDiffers) {
  EchoGroup group;
  const auto hook = make_power_sgd_hook(options_of(2));
  skip_start(hook, group, mixed_gradients(1), 4);
  const HookState saved = hook->state_dict();
  EXPECT_EQ(load_error(*make_power_sgd_hook(options_of(2, 3)), saved), "");
  EXPECT_NE(
      load_error(*make_power_sgd_hook(options_of(3)), saved).find("matrix_approximation_rank = 2, this hook has 3"),
      std::string::npos);
  auto cold = options_of(2);
  cold.warm_start = false;
  EXPECT_NE(load_error(*make_power_sgd_hook(cold), saved).find("warm_start = true"), std::string::npos);
  EXPECT_NE(load_error(*make_batched_power_sgd_hook(options_of(2)), saved).find("power_sgd"), std::string::npos);
  EXPECT_NE(load_error(*hook, {}).find("not one of the hook"), std::string::npos);
  HookState broken = saved;
  broken["iterations"] = -1;
  EXPECT_NE(load_error(*hook, broken).find("iterations"), std::string::npos);
  broken = saved;
  broken["q/a.weight"] = "text";
  EXPECT_NE(load_error(*hook, broken).find("q/a.weight"), std::string::npos);
  // Nothing changed by all that.
  const HookState after = hook->state_dict();
  EXPECT_TRUE(after.at("q/a.weight").toTensor().equal(saved.at("q/a.weight").toTensor()));
}

TEST(PowerSgdState, AStateOfAnotherModelIsRefusedAtItsFirstUse) {
  EchoGroup group;
  const auto hook = make_power_sgd_hook(options_of(2));
  skip_start(hook, group, mixed_gradients(1), 4);
  const std::string error = error_of([&] {
    (void)run_hook(*hook, group, {{"a.weight", random_tensor({30, 30}, 1)}}, 4);
  });
  EXPECT_NE(error.find("a.weight"), std::string::npos) << error;
  EXPECT_NE(error.find("another model"), std::string::npos) << error;
}

// As of a run in float64.
TEST(PowerSgdState, AnErrorOfAnotherPrecisionIsConverted) {
  for (const bool batched : {false, true}) {
    EchoGroup group;
    const auto make = [&] {
      return batched ? make_batched_power_sgd_hook(options_of(2)) : make_power_sgd_hook(options_of(2));
    };
    const auto straight = make(), resumed = make();
    skip_start(straight, group, mixed_gradients(1), 4);
    HookState state = straight->state_dict();
    int errors = 0;
    for (auto& [key, value] : state) {
      if (!value.isTensor() || !value.toTensor().is_floating_point() || key.find("error") == std::string::npos)
        continue;
      value = value.toTensor().to(at::kDouble);
      ++errors;
    }
    ASSERT_GT(errors, 0);
    resumed->load_state_dict(state);
    EXPECT_TRUE(
        same_bits(run_hook(*resumed, group, mixed_gradients(2), 4), run_hook(*straight, group, mixed_gradients(2), 4)));
  }
}

TEST(PowerSgdState, LogsItsStatistics) {
  EchoGroup group;
  auto options = options_of(2);
  options.compression_stats_logging_frequency = 3;
  const auto hook = make_power_sgd_hook(options);
  log::set_level(log::Level::info);
  ::testing::internal::CaptureStderr();
  skip_start(hook, group, mixed_gradients(1), 10);
  const std::string lines = ::testing::internal::GetCapturedStderr();
  log::set_level(log::Level::off);
  std::size_t count = 0;
  for (std::size_t at = lines.find("compression rate"); at != std::string::npos;
       at = lines.find("compression rate", at + 1))
    ++count;
  // After iterations 2, 5 and 8.
  EXPECT_EQ(count, 3u) << lines;
  EXPECT_NE(lines.find("after iteration 5"), std::string::npos) << lines;
}

}  // namespace
}  // namespace gradwire::testing::power_sgd_test::state
