// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Which devices get kernels, and that codecs over kernels read and write the bytes of the codecs. The kernels here are
// those of tests (cuda/host_launches_test_support.h), for tensors on the CPU.
#include "gradwire/hooks/device/kernel_codec_internal.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "gradwire/compress/registry.h"
#include "gradwire/ddp/ddp_test_support.h"
#include "gradwire/hooks/device/codec_bytes_test_support.h"
#include "gradwire/hooks/device/cuda/host_launches_test_support.h"
#include "tests/support/fake_device.h"

namespace gradwire::testing::kernel_codec_test {
namespace {

using compress::EncodeKey;

int kernel_calls = 0;

int failing_sign(const float*, std::size_t, std::uint8_t*, cuda::Stream) { return 42; }

// Counts the questions, and answers with kernels for the CPU.
const internal::CodecKernels* kernels_of_cpu(const at::Device& device) {
  static const internal::CodecKernels kernels{cuda::on_host::kLaunches,
                                              [](const at::Device&) -> cuda::Stream { return nullptr; }};
  if (!device.is_cpu()) return nullptr;
  ++kernel_calls;
  return &kernels;
}

const internal::CodecKernels* failing_kernels(const at::Device&) {
  static const internal::CodecKernels kernels = [] {
    internal::CodecKernels made{cuda::on_host::kLaunches, [](const at::Device&) -> cuda::Stream { return nullptr; }};
    made.launches.encode_sign = &failing_sign;
    return made;
  }();
  return &kernels;
}

constexpr const char* kWithKernels[] = {"fp16",
                                        "bf16",
                                        "fp8_e4m3:block=64",
                                        "fp8_e5m2:block=37",
                                        "int8:block=64",
                                        "int4",
                                        "int2:block=8",
                                        "int8:block=64,rounding=stochastic",
                                        "int4:block=64,rounding=stochastic",
                                        "one_bit:block=64",
                                        "sign",
                                        "top_k:ratio=0.1",
                                        "dgc:ratio=0.01,ramp=8"};

TEST(KernelCodec, ReadsAndWritesTheBytesOfTheCodec) {
  for (const char* description : kWithKernels) {
    const auto codec = compress::make_codec(description);
    const auto over_kernels = internal::make_device_codec(*codec, &kernels_of_cpu);
    const auto over_operators = internal::make_device_codec(*codec);
    for (const std::int64_t count : {0, 1, 8, 65, 700}) {
      for (const std::uint64_t step : {0, 9}) {
        SCOPED_TRACE(concat(description, ", ", count, " values, step ", step));
        const EncodeKey key{7, 11, step, 2};
        const at::Tensor whole = random_tensor({count + 1}, 5);
        const at::Tensor values = whole.narrow(0, 1, count);
        const at::Tensor expected = bytes_of(*codec, values, key);
        kernel_calls = 0;
        EXPECT_TRUE(over_kernels->encode(values, key).equal(expected));
        const at::Tensor decoded = over_operators->decode(expected, count, key);
        EXPECT_TRUE(over_kernels->decode(expected, count, key).equal(decoded));
        const at::Tensor sum = random_tensor({count}, 6), before = sum.clone();
        EXPECT_TRUE(over_kernels->add_decoded(sum, expected, key).equal(before + decoded));
        EXPECT_TRUE(over_operators->add_decoded(sum, expected, key).equal(before + decoded));
        EXPECT_TRUE(sum.equal(before));
        EXPECT_EQ(kernel_calls, 3);
      }
    }
  }
}

// Every codec of the registry has kernels, but for the two whose comments say why not.
TEST(KernelCodec, KnowsTheCodecsOfTheRegistry) {
  const std::set<std::string> without{"threshold", "random_k"};
  for (const compress::CodecInfo& info : compress::known_codecs()) {
    SCOPED_TRACE(info.name);
    const auto codec = compress::make_codec(info.name);
    kernel_calls = 0;
    (void)internal::make_device_codec(*codec, &kernels_of_cpu)->encode(random_tensor({100}, 1), {});
    EXPECT_EQ(kernel_calls, without.contains(std::string(info.name)) ? 0 : 1);
  }
}

TEST(KernelCodec, RefusesBytesOfAnotherSize) {
  for (const char* description : kWithKernels) {
    SCOPED_TRACE(description);
    const auto codec = compress::make_codec(description);
    const auto over_kernels = internal::make_device_codec(*codec, &kernels_of_cpu);
    EXPECT_THROW((void)over_kernels->decode(at::zeros({3}, at::kByte), 100, {}), MismatchError);
    EXPECT_THROW((void)over_kernels->add_decoded(at::zeros({100}), at::zeros({3}, at::kByte), {}), MismatchError);
  }
}

TEST(KernelCodec, SaysThatAKernelDidNotStart) {
  const auto codec = compress::make_codec("sign");
  try {
    (void)internal::make_device_codec(*codec, &failing_kernels)->encode(at::zeros({8}), {});
    FAIL() << "no error";
  } catch (const ResourceError& error) {
    EXPECT_NE(std::string(error.what()).find("codec sign: a kernel did not start on cpu: no device"), std::string::npos)
        << error.what();
  }
}

std::vector<std::string> calls;

// The noting kernels have no third device.
int note_device(int device) {
  calls.push_back(concat("device ", device));
  return device == 3 ? 101 : 0;
}
int note_encode(const float*, std::size_t, std::uint8_t*, cuda::Stream) {
  calls.emplace_back("encode");
  return 0;
}
int note_decode(const std::uint8_t*, std::size_t, const float*, float*, cuda::Stream) {
  calls.emplace_back("decode");
  return 0;
}

// Kernels that touch no memory, for the fake device.
const internal::CodecKernels* noting_kernels(const at::Device&) {
  static const internal::CodecKernels kernels = [] {
    internal::CodecKernels made{cuda::on_host::kLaunches, [](const at::Device&) -> cuda::Stream { return nullptr; }};
    made.launches.use_device = &note_device;
    made.launches.encode_sign = &note_encode;
    made.launches.decode_sign = &note_decode;
    return made;
  }();
  return &kernels;
}

// The kernels link a CUDA runtime of their own: torch's guards do not set the current device there.
TEST(KernelCodec, SetsTheDeviceOfItsTensorsBeforeEachKernel) {
  using Calls = std::vector<std::string>;
  const auto codec = compress::make_codec("sign");
  const auto over_kernels = internal::make_device_codec(*codec, &noting_kernels);
  const auto values = [](int device) { return at::zeros({8}, at::TensorOptions(fake_device(device))); };
  calls.clear();
  const at::Tensor bytes = over_kernels->encode(values(1), {});
  EXPECT_EQ(calls, (Calls{"device 1", "encode"}));
  calls.clear();
  (void)over_kernels->decode(bytes, 8, {});
  (void)over_kernels->add_decoded(values(1), bytes, {});
  EXPECT_EQ(calls, (Calls{"device 1", "decode", "device 1", "decode"}));
  calls.clear();
  EXPECT_THROW((void)over_kernels->encode(values(3), {}), ResourceError);
  EXPECT_EQ(calls, Calls{"device 3"});
}

int questions = 0;

// An error that passes does not turn the kernels off for the life of the process.
TEST(KnownDevices, RememberAnAnswerAndNotAnErrorThatPasses) {
  internal::KnownDevices known;
  const auto passing_error = [](int) { return ++questions < 3 ? cuda::Runs::unknown : cuda::Runs::yes; };
  questions = 0;
  for (const bool runs : {false, false, true, true, true}) EXPECT_EQ(known.runs_on(0, passing_error), runs);
  EXPECT_EQ(questions, 3);
  const auto no = [](int) {
    ++questions;
    return cuda::Runs::no;
  };
  for (int time = 0; time < 3; ++time) EXPECT_FALSE(known.runs_on(1, no));
  EXPECT_EQ(questions, 4);
  EXPECT_TRUE(known.runs_on(0, no)) << "each device has an answer of its own";
  EXPECT_FALSE(known.runs_on(64, passing_error));
  EXPECT_EQ(questions, 4);
}

// The project's tables of kernels are for CUDA alone.
TEST(KernelCodec, FindsNoKernelsForOtherDevices) {
  EXPECT_EQ(internal::find_codec_kernels(at::kCPU), nullptr);
  EXPECT_EQ(internal::find_codec_kernels(at::Device(c10::DeviceType::PrivateUse1, 0)), nullptr);
}

}  // namespace
}  // namespace gradwire::testing::kernel_codec_test
