// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Codecs, states of hooks and clipping on a device: the bytes and the numbers are those of the CPU, and no gradient
// comes to the host. The hook "auto" measures there. Runs on any device (tests/support/test_device.h).
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "gradwire/compress/registry.h"
#include "gradwire/ddp/device_test_support.h"
#include "gradwire/ddp/kept_hook_state.h"
#include "gradwire/hooks/auto_hook.h"
#include "gradwire/hooks/clip_hook.h"
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
  const c10::Device device = test_device(0);
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
  const c10::Device device = test_device(0);
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
  const c10::Device device = test_device(0);
  for (const CodecCase& each : kCodecs) {
    SCOPED_TRACE(each.description);
    const auto codec = compress::make_codec(each.description);
    const auto on_device = internal::make_device_codec(*codec);
    const at::Tensor bytes = at::full({static_cast<std::int64_t>(codec->encoded_size(100, 0))}, 0xff, at::kByte);
    EXPECT_EQ(on_device->decode(bytes.to(device), 100, {}).numel(), 100);
    EXPECT_THROW((void)on_device->decode(at::zeros({3}, at::kByte).to(device), 100, {}), MismatchError);
  }
}

// Runs `hook` on a bucket of one parameter, which has the strides of `gradient`, and returns the average.
at::Tensor average_of(CommHook& hook, ProcessGroup& group, const at::Tensor& gradient, const c10::Device& device,
                      std::uint32_t iteration, const std::vector<std::size_t>& absent = {}) {
  auto layout = std::make_shared<BucketLayout>();
  layout->device = device;
  layout->append(0, gradient, gradient, "p");
  const at::Tensor flat = gradient.as_strided({gradient.numel()}, {1}).clone();
  GradBucket bucket(layout, flat.to(device), group, 1, true, iteration, /*joined=*/false, absent);
  return result_of(hook, bucket).cpu().as_strided(gradient.sizes(), gradient.strides());
}

// A long gradient is compressed in pieces, each of which draws random numbers of its own.
TEST(DevicePieces, DrawTheNumbersOfTheCpu) {
  const std::string spec = "int8:block=64,rounding=stochastic,memory=none,exchange=";
  for (const std::string exchange : {"all_gather", "all_reduce"}) {
    SCOPED_TRACE(exchange);
    const at::Tensor gradient = random_tensor({(std::int64_t{1} << 20) + 5000}, 1);
    run_device_ranks(1, [&](int, const std::shared_ptr<ProcessGroup>& group) {
      const auto on_device = make_hook(spec + exchange), on_cpu = make_hook(spec + exchange);
      const at::Tensor expected = average_of(*on_cpu, *group, gradient, c10::Device(at::kCPU), 0);
      EXPECT_TRUE(average_of(*on_device, *group, gradient, test_device(0), 0).equal(expected));
    });
  }
}

// A state that was saved on one device goes on where it is loaded: on a device or on the CPU.
TEST(HookStateOfADevice, GoesOnWhereItIsLoaded) {
  for (const char* spec : {"int4", "top_k:ratio=0.1", "dgc:ratio=0.1,ramp=0", "int8:memory=ef21"}) {
    SCOPED_TRACE(spec);
    const at::Tensor gradient = random_tensor({500}, 1);
    run_device_ranks(1, [&](int, const std::shared_ptr<ProcessGroup>& group) {
      const auto first = make_hook(spec);
      (void)average_of(*first, *group, gradient, test_device(0), 0);
      const HookState state = first->state_dict();
      const at::Tensor expected = average_of(*first, *group, gradient, test_device(0), 1);
      for (const c10::Device& device : {test_device(0), c10::Device(at::kCPU)}) {
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
        return average_of(hook, *group, gradient, test_device(0), iteration);
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

// An iteration in which no rank uses the parameter leaves its memory alone.
TEST(HookStateOfADevice, IsAsBeforeWhereNoRankUsedTheParameter) {
  for (const char* spec : {"int4", "top_k:ratio=0.1", "dgc:ratio=0.1,ramp=0", "int8:memory=ef21"}) {
    SCOPED_TRACE(spec);
    run_device_ranks(1, [&](int, const std::shared_ptr<ProcessGroup>& group) {
      const auto hook = make_hook(spec);
      const auto memory = [&] {
        HookState state = hook->state_dict();
        state.erase("iteration");
        return state;
      };
      for (std::uint32_t iteration = 0; iteration < 6; iteration += 2) {
        const HookState before = memory();
        (void)average_of(*hook, *group, at::zeros({500}), test_device(0), iteration, {0});
        hook->revert_unused({"p"});
        hook->end_iteration();
        const HookState after = memory();
        ASSERT_EQ(after.size(), before.size());
        for (const auto& [key, value] : before) EXPECT_TRUE(after.at(key).toTensor().equal(value.toTensor())) << key;
        (void)average_of(*hook, *group, random_tensor({500}, 1), test_device(0), iteration + 1);
        hook->end_iteration();
      }
      EXPECT_FALSE(memory().empty());
    });
  }
}

// The state of a parameter of some strides goes on in one of others.
TEST(HookStateOfADevice, GoesToAParameterWithOtherStrides) {
  for (const char* spec : {"top_k:ratio=0.1", "dgc:ratio=0.1,ramp=0", "top_k:ratio=0.1,memory=ef21"}) {
    SCOPED_TRACE(spec);
    run_device_ranks(1, [&](int, const std::shared_ptr<ProcessGroup>& group) {
      const at::Tensor gradients[] = {random_tensor({4, 5, 5, 5}, 1), random_tensor({4, 5, 5, 5}, 2)};
      const auto first = make_hook(spec);
      (void)average_of(*first, *group, gradients[0], test_device(0), 0);
      const HookState state = first->state_dict();
      const at::Tensor expected = average_of(*first, *group, gradients[1], test_device(0), 1);
      for (const c10::Device& device : {test_device(0), c10::Device(at::kCPU)}) {
        const auto second = make_hook(spec);
        second->load_state_dict(state);
        const at::Tensor gradient = gradients[1].contiguous(at::MemoryFormat::ChannelsLast);
        EXPECT_TRUE(average_of(*second, *group, gradient, device, 1).equal(expected)) << device;
        const HookState after = second->state_dict();
        for (const auto& [key, value] : first->state_dict()) {
          if (!value.isTensor()) continue;
          EXPECT_TRUE(after.at(key).toTensor().equal(value.toTensor())) << key;
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
    on_device.push_back(at::zeros({50, 4}, at::TensorOptions(test_device(0))));
    on_device.back().mutable_grad() = gradient.to(test_device(0));
  }
  (void)take_bytes_to_host();
  for (const NormKind kind : {NormKind::kL2, NormKind::kMax}) {
    const double norm = clip_grad_norm(on_device, 0.1, kind);
    EXPECT_LE(take_bytes_to_host().value_or(0), 100u);
    EXPECT_NEAR(norm, clip_grad_norm(on_cpu, 0.1, kind), 1e-12 * norm);
    for (std::size_t i = 0; i < on_cpu.size(); ++i)
      EXPECT_TRUE(at::allclose(on_device[i].grad().cpu(), on_cpu[i].grad(), 1e-6, 0));
    (void)take_bytes_to_host();
  }
  EXPECT_EQ(races(), "");
}

// DDP runs the hook in several buckets, on streams of its own.
TEST(DeviceHooks, AutoMeasuresEveryHookWhileItTrains) {
  run_ranks({"threads"}, std::min(2, device_count()), [&](int rank, const std::shared_ptr<ProcessGroup>& group) {
    const c10::Device device = test_device(rank);
    DdpOptions options;
    options.process_group = group;
    options.bucket_cap_mb = 0.0003;
    Layers net(device);
    DistributedDataParallel<Layers> ddp(net, options);
    const auto hook = make_auto_hook();
    ddp.register_comm_hook(hook);
    for (int step = 0; step < 40; ++step) {
      ddp.zero_grad();
      ddp(random_tensor({4, 8}, 10 * step + rank).to(device)).sum().backward();
    }
    ASSERT_FALSE(hook->choices().empty());
    for (const HookTimes& times : hook->choices().front().measured) {
      EXPECT_TRUE(std::isfinite(times.cost)) << times.hook;
      EXPECT_GE(times.cost, 0) << times.hook;
      // The fake device's clock stands still here.
      if (on_gpu()) {
        EXPECT_GT(times.cost, 0) << times.hook;
      }
    }
  });
  EXPECT_EQ(races(), "");
}

}  // namespace
}  // namespace gradwire::testing::device_hooks_test
