// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Hooks on a device, on one that is not there: the numbers are those of the CPU, the streams are in order, and no
// gradient comes to the host.
#include <cmath>
#include <cstring>
#include <limits>

#include "gradwire/compress/registry.h"
#include "gradwire/ddp/device_test_support.h"
#include "gradwire/ddp/kept_hook_state.h"
#include "gradwire/hooks/clip_hook.h"
#include "gradwire/hooks/compressed_hook.h"
#include "gradwire/hooks/device/affine_internal.h"
#include "gradwire/hooks/device/codec_bytes_test_support.h"
#include "gradwire/hooks/device/device_codec_internal.h"
#include "gradwire/hooks/registry.h"

namespace gradwire::testing::device_hooks_test {
namespace {

using compress::EncodeKey;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct CodecCase {
  const char* description;
  bool same_bits = true;  // false: the scales are sums, in the device's order
};
constexpr CodecCase kCodecs[] = {{"fp16"},
                                 {"bf16"},
                                 {"fp8_e4m3:block=64"},
                                 {"fp8_e5m2:block=64"},
                                 {"int8:block=64"},
                                 {"int4:block=64"},
                                 {"int2:block=64"},
                                 {"int8:block=64,rounding=stochastic"},
                                 {"int4:block=64,rounding=stochastic"},
                                 {"int2:block=64,rounding=stochastic"},
                                 {"one_bit:block=64", false},
                                 {"sign"},
                                 {"top_k:ratio=0.1"},
                                 {"dgc:ratio=0.01,ramp=8"},
                                 {"threshold:threshold=0.3"},
                                 {"random_k:ratio=0.1"},
                                 {"random_k:ratio=0.1,unbiased=1"}};

at::Tensor values_of(const compress::Codec& codec, const at::Tensor& bytes, std::int64_t count, const EncodeKey& key) {
  const at::Tensor values = at::empty({count}, at::kFloat);
  codec.decode({static_cast<const std::byte*>(bytes.const_data_ptr()), static_cast<std::size_t>(bytes.numel())}, key,
               {values.mutable_data_ptr<float>(), static_cast<std::size_t>(count)});
  return values;
}

// Equal values of small magnitude, numbers of every magnitude, zeros of both signs; with `odd` also infinities and NaN.
at::Tensor test_values(std::int64_t count, bool odd) {
  at::Tensor values = random_tensor({count}, static_cast<int>(count));
  auto* const data = values.mutable_data_ptr<float>();
  for (std::int64_t i = 0; i < count; ++i) {
    if (i % 5 == 1) data[i] = i % 2 == 0 ? 0.25f : -0.25f;
    if (i % 11 == 3) data[i] = i % 2 == 0 ? 0.0f : -0.0f;
    if (count > 300 && i / 64 == 2) data[i] *= 1e-37f;
    if (count > 300 && i / 64 == 3) data[i] *= 1e37f;
    if (count > 400 && i / 64 == 5) data[i] = 0.0f;
    if (odd && i % 97 == 5) data[i] = i % 2 == 0 ? kInfinity : kNan;
  }
  return values;
}

bool same_or_nan(const at::Tensor& one, const at::Tensor& other) {
  return at::allclose(one, other, 0, 0, /*equal_nan=*/true);
}

TEST(DeviceCodecs, WriteAndReadTheBytesOfTheCodecsThemselves) {
  const c10::Device device = fake_device(0);
  for (const CodecCase& each : kCodecs) {
    SCOPED_TRACE(each.description);
    const auto codec = compress::make_codec(each.description);
    const auto on_device = internal::make_device_codec(*codec);
    for (const std::int64_t count : {0, 1, 7, 8, 63, 64, 65, 129, 700}) {
      for (const std::uint64_t step : {0, 3, 9}) {
        SCOPED_TRACE(concat(count, " values, step ", step));
        const EncodeKey key{7, 11, step, 2};
        const at::Tensor values = test_values(count, false);
        const at::Tensor expected = bytes_of(*codec, values, key);
        const at::Tensor bytes = on_device->encode(values.to(device), key);
        ASSERT_EQ(bytes.device(), device);
        ASSERT_EQ(bytes.numel(), expected.numel());
        EXPECT_TRUE(!each.same_bits || bytes.cpu().equal(expected));
        const at::Tensor decoded = on_device->decode(expected.to(device), count, key);
        EXPECT_TRUE(decoded.cpu().equal(values_of(*codec, expected, count, key)));
        EXPECT_TRUE(at::allclose(on_device->decode(bytes, count, key).cpu(), decoded.cpu(), 1e-6, 0));
      }
    }
  }
  EXPECT_EQ(races(), "");
}

TEST(DeviceCodecs, KeepInfinityAndNan) {
  const c10::Device device = fake_device(0);
  for (const CodecCase& each : kCodecs) {
    SCOPED_TRACE(each.description);
    const auto codec = compress::make_codec(each.description);
    const auto on_device = internal::make_device_codec(*codec);
    const EncodeKey key{7, 11, 0, 2};
    const at::Tensor values = test_values(700, true);
    const at::Tensor expected = values_of(*codec, bytes_of(*codec, values, key), 700, key);
    const at::Tensor decoded = on_device->decode(on_device->encode(values.to(device), key), 700, key).cpu();
    EXPECT_TRUE(each.same_bits ? same_or_nan(decoded, expected) : at::allclose(decoded, expected, 1e-6, 0, true));
  }
}

// Bytes of another rank lead nowhere else.
TEST(DeviceCodecs, TakeBytesThatAreNoEncoding) {
  const c10::Device device = fake_device(0);
  for (const CodecCase& each : kCodecs) {
    SCOPED_TRACE(each.description);
    const auto codec = compress::make_codec(each.description);
    const auto on_device = internal::make_device_codec(*codec);
    const at::Tensor bytes = at::full({static_cast<std::int64_t>(codec->encoded_size(100, 0))}, 0xff, at::kByte);
    EXPECT_EQ(on_device->decode(bytes.to(device), 100, {}).numel(), 100);
    EXPECT_THROW((void)on_device->decode(at::zeros({3}, at::kByte).to(device), 100, {}), MismatchError);
  }
}

struct DeviceHookCase {
  std::string name;
  double tolerance;  // between the gradients of the device and of the CPU; 0: the same bits
};

// Every hook of the registry, with options under which it compresses these gradients. fp16_compress and bf16_compress
// add in half precision, where an engine may round after each rank; PowerSGD's products and one_bit's sums have the
// order of the device.
std::vector<DeviceHookCase> device_hook_cases() {
  std::vector<DeviceHookCase> cases;
  for (const std::string& name : hook_names()) {
    if (name.find("power_sgd") != std::string::npos) {
      cases.push_back({name + ":start=2,min_rate=0", 1e-5});
    } else {
      cases.push_back({name, name == "fp16_compress"   ? 1e-3
                             : name == "bf16_compress" ? 1e-2
                             : name == "one_bit"       ? 1e-6
                                                       : 0});
    }
  }
  for (const char* more :
       {"int4:rounding=stochastic,block=64", "int8:memory=ef21,exchange=all_gather", "int8:memory=ef21",
        "top_k:ratio=0.1,exchange=all_reduce", "threshold:threshold=0.001,exchange=all_reduce", "int2:vectors=plain",
        "random_k:unbiased=1,memory=none", "dgc:ratio=0.1,ramp=0,clip=0.5", "int8:warm_up=1", "int4:wrap=bf16"})
    cases.push_back({more, std::string(more).find("clip") != std::string::npos ? 1e-6 : 0});
  return cases;
}

constexpr int kSteps = 4;
constexpr std::int64_t kWidth = 24;

// The gradients of the last of some steps, each step with gradients of its own, and the state of the hook.
struct Trained {
  std::vector<at::Tensor> gradients;
  HookState state;
};

Trained train(
    int rank, const std::shared_ptr<ProcessGroup>& group, const c10::Device& device,
    const std::shared_ptr<CommHook>& hook, const std::function<void()>& before_reading = [] {}) {
  Layers model(device, kWidth);
  DdpOptions options = options_for({"threads", 1, rank % 2 == 0}, group);
  options.gradient_as_bucket_view = false;
  options.bucket_cap_mb = 2500.0 / (1 << 20);  // a layer a bucket
  DistributedDataParallel ddp(model, options);
  ddp.register_comm_hook(hook);
  for (int step = 0; step < kSteps; ++step) {
    model->zero_grad();
    ddp(random_tensor({4, kWidth}, 10 * step + rank).to(device)).sum().backward();
  }
  group->barrier()->wait();
  before_reading();
  Trained trained{{}, hook->state_dict()};
  for (const at::Tensor& gradient : gradients_of(*model)) trained.gradients.push_back(gradient.cpu());
  group->barrier()->wait();
  return trained;
}

std::vector<Trained> train_on_cpu(int world, const std::string& spec) {
  std::vector<Trained> ends(static_cast<std::size_t>(world));
  run_ranks({"threads"}, world, [&](int rank, const std::shared_ptr<ProcessGroup>& group) {
    ends[static_cast<std::size_t>(rank)] = train(rank, group, at::kCPU, make_hook(spec));
  });
  return ends;
}

void expect_same_state(const HookState& actual, const HookState& expected, double tolerance) {
  ASSERT_EQ(actual.size(), expected.size());
  for (const auto& [key, value] : expected) {
    ASSERT_TRUE(actual.contains(key)) << key;
    if (!value.isTensor()) continue;
    const at::Tensor& tensor = actual.at(key).toTensor();
    EXPECT_TRUE(tensor.is_cpu()) << key;
    EXPECT_TRUE(at::allclose(tensor, value.toTensor(), tolerance, tolerance)) << key;
  }
}

class HooksOnDevice : public ::testing::TestWithParam<DeviceHookCase> {};

TEST_P(HooksOnDevice, TrainAsOnTheCpuAndKeepGradientsOnTheDevice) {
  const auto& [spec, tolerance] = GetParam();
  const std::int64_t gradient_bytes = 3 * (kWidth * kWidth + kWidth) * static_cast<std::int64_t>(sizeof(float));
  for (const int world : {1, 2, 3}) {
    SCOPED_TRACE(concat(world, " ranks"));
    const std::vector<Trained> expected = train_on_cpu(world, spec);
    (void)take_fake_bytes_to_host();
    std::size_t to_host = 0;
    run_device_ranks(world, [&](int rank, const std::shared_ptr<ProcessGroup>& group) {
      const c10::StreamGuard users(new_fake_stream(fake_device(rank)));
      const Trained trained = train(rank, group, fake_device(rank), make_hook(spec), [&] {
        if (rank == 0) to_host = take_fake_bytes_to_host();
        group->barrier()->wait();
      });
      const Trained& on_cpu = expected[static_cast<std::size_t>(rank)];
      for (std::size_t i = 0; i < on_cpu.gradients.size(); ++i) {
        EXPECT_TRUE(tolerance == 0 ? trained.gradients[i].equal(on_cpu.gradients[i])
                                   : at::allclose(trained.gradients[i], on_cpu.gradients[i], tolerance, tolerance))
            << "parameter " << i << " differs by "
            << (trained.gradients[i] - on_cpu.gradients[i]).abs().max().item<float>();
      }
      expect_same_state(trained.state, on_cpu.state, tolerance == 0 ? 0 : 1e-3);
    });
    // PowerSGD's factors come to the host, and nothing as large as the gradients.
    EXPECT_LT(to_host, static_cast<std::size_t>(kSteps * world * gradient_bytes / 2));
    const bool by_factors = spec.find("power_sgd") != std::string::npos;
    EXPECT_TRUE(by_factors || to_host * 20 < static_cast<std::size_t>(kSteps * world * gradient_bytes)) << to_host;
    EXPECT_EQ(races(), "");
  }
}

// Over an engine that moves memory of the host, encodings leave the device instead of gradients.
TEST_P(HooksOnDevice, TrainOverAnEngineOfTheHost) {
  const auto& [spec, tolerance] = GetParam();
  const std::int64_t gradient_bytes = 3 * (kWidth * kWidth + kWidth) * static_cast<std::int64_t>(sizeof(float));
  const std::vector<Trained> expected = train_on_cpu(2, spec);
  (void)take_fake_bytes_to_host();
  std::size_t to_host = 0;
  run_ranks({"threads"}, 2, [&](int rank, const std::shared_ptr<ProcessGroup>& group) {
    const c10::Device device = fake_device(rank);
    const c10::DeviceGuard here(device);
    const c10::StreamGuard users(new_fake_stream(device));
    const Trained trained = train(rank, group, device, make_hook(spec), [&] {
      if (rank == 0) to_host = take_fake_bytes_to_host();
      group->barrier()->wait();
    });
    const Trained& on_cpu = expected[static_cast<std::size_t>(rank)];
    for (std::size_t i = 0; i < on_cpu.gradients.size(); ++i)
      EXPECT_TRUE(at::allclose(trained.gradients[i], on_cpu.gradients[i], tolerance, tolerance)) << "parameter " << i;
  });
  // At the start the parameters of rank 0 travel.
  const auto at_start = static_cast<std::size_t>(2 * gradient_bytes);
  const auto all = static_cast<std::size_t>(kSteps * 2 * gradient_bytes);
  const bool compresses = spec.find("warm_up") == std::string::npos &&
                          (spec.starts_with("int") || spec.starts_with("fp8") || spec.starts_with("sign") ||
                           spec.starts_with("one_bit") || spec.starts_with("top_k"));
  if (compresses) {
    EXPECT_LT(to_host, at_start + all / 2);
  }
  if (spec == "allreduce") {
    EXPECT_GE(to_host, all);
  }
  EXPECT_EQ(races(), "");
}

INSTANTIATE_TEST_SUITE_P(All, HooksOnDevice, ::testing::ValuesIn(device_hook_cases()), [](const auto& info) {
  std::string name = info.param.name;
  for (char& letter : name) letter = std::isalnum(static_cast<unsigned char>(letter)) != 0 ? letter : '_';
  return name;
});

// What the tests above rely on: a hook that touches the memory of the device, or copies a gradient, is found.
TEST(FakeDeviceMemory, FaultsWhenTheHostTouchesIt) {
  ::testing::GTEST_FLAG(death_test_style) = "threadsafe";
  EXPECT_EXIT(
      {
        const at::Tensor tensor = on_fake(0);
        volatile const auto* const value = static_cast<const float*>(tensor.const_data_ptr());
        std::exit(*value == 0 ? 1 : 2);
      },
      ::testing::KilledBySignal(SIGSEGV), "");
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

// Runs `hook` on a bucket of one parameter, and returns the average.
at::Tensor average_of(CommHook& hook, ProcessGroup& group, const at::Tensor& gradient, const c10::Device& device,
                      std::uint32_t iteration) {
  auto layout = std::make_shared<BucketLayout>();
  layout->device = device;
  layout->append(0, gradient, gradient, "p");
  GradBucket bucket(layout, gradient.clone().to(device), group, 1, true, iteration);
  return result_of(hook, bucket).cpu();
}

// A state that was saved on one device goes on where it is loaded: on a device or on the CPU.
TEST(HookStateOfADevice, GoesOnWhereItIsLoaded) {
  for (const char* spec : {"int4", "top_k:ratio=0.1", "dgc:ratio=0.1,ramp=0", "int8:memory=ef21"}) {
    SCOPED_TRACE(spec);
    const at::Tensor gradient = random_tensor({500}, 1);
    run_device_ranks(1, [&](int, const std::shared_ptr<ProcessGroup>& group) {
      const auto first = make_hook(spec);
      (void)average_of(*first, *group, gradient, fake_device(0), 0);
      const HookState state = first->state_dict();
      const at::Tensor expected = average_of(*first, *group, gradient, fake_device(0), 1);
      for (const c10::Device& device : {fake_device(0), c10::Device(at::kCPU)}) {
        const auto second = make_hook(spec);
        second->load_state_dict(state);
        EXPECT_TRUE(average_of(*second, *group, gradient, device, 1).equal(expected)) << device;
        EXPECT_EQ(second->state_dict().size(), state.size());
      }
    });
  }
}

// Steps that are taken back leave nothing on the device, also where the first of them brought a loaded state there.
TEST(HookStateOfADevice, GoesBackToWhereItWasKept) {
  for (const char* spec : {"int4", "top_k:ratio=0.1", "dgc:ratio=0.1,ramp=0", "int8:memory=ef21"}) {
    SCOPED_TRACE(spec);
    const at::Tensor gradient = random_tensor({500}, 1);
    run_device_ranks(1, [&](int, const std::shared_ptr<ProcessGroup>& group) {
      const auto step = [&](CommHook& hook, std::uint32_t iteration) {
        return average_of(hook, *group, gradient, fake_device(0), iteration);
      };
      const auto first = make_hook(spec), second = make_hook(spec);
      (void)step(*first, 0);
      second->load_state_dict(first->state_dict());
      for (const auto& hook : {first, second}) {
        KeptHookState kept;
        kept.keep(*hook);
        const at::Tensor expected = step(*hook, 1);
        EXPECT_FALSE(step(*hook, 2).equal(expected));
        for (int again = 0; again < 2; ++again) {
          kept.revert(*hook);
          EXPECT_TRUE(step(*hook, 1).equal(expected));
        }
      }
    });
  }
}

TEST(ClippingOnADevice, BringsOnlyTheNormToTheHost) {
  std::vector<at::Tensor> on_device, on_cpu;
  for (int i = 0; i < 3; ++i) {
    const at::Tensor gradient = random_tensor({50, 4}, i);
    on_cpu.push_back(at::zeros({50, 4}));
    on_cpu.back().mutable_grad() = gradient.clone();
    on_device.push_back(at::zeros({50, 4}, at::TensorOptions(fake_device(0))));
    on_device.back().mutable_grad() = gradient.to(fake_device(0));
  }
  (void)take_fake_bytes_to_host();
  for (const NormKind kind : {NormKind::kL2, NormKind::kMax}) {
    const double norm = clip_grad_norm(on_device, 0.1, kind);
    EXPECT_LE(take_fake_bytes_to_host(), 100u);
    EXPECT_NEAR(norm, clip_grad_norm(on_cpu, 0.1, kind), 1e-12 * norm);
    for (std::size_t i = 0; i < on_cpu.size(); ++i)
      EXPECT_TRUE(at::allclose(on_device[i].grad().cpu(), on_cpu[i].grad(), 1e-6, 0));
    (void)take_fake_bytes_to_host();
  }
  EXPECT_EQ(races(), "");
}

}  // namespace
}  // namespace gradwire::testing::device_hooks_test
