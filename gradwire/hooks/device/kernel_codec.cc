// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/hooks/device/kernel_codec_internal.h"

#include <ATen/Functions.h>
#include <c10/core/DeviceGuard.h>

#include <functional>
#include <string>
#include <utility>

#include "gradwire/base/environment.h"
#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "gradwire/compress/codec_internal.h"
#include "gradwire/compress/random.h"
#include "gradwire/compress/sparse_internal.h"
#include "gradwire/hooks/device/dense_codecs_internal.h"

namespace gradwire::internal {
namespace {

using compress::Codec;
using compress::EncodeKey;

struct Encoding {
  const cuda::Launches& kernels;
  const at::Tensor& values;
  const at::Tensor& bytes;
  const EncodeKey& key;
  cuda::Stream stream;

  std::size_t count() const { return static_cast<std::size_t>(values.numel()); }
  const float* from() const { return values.const_data_ptr<float>(); }
  std::uint8_t* to() const { return bytes.mutable_data_ptr<std::uint8_t>(); }
};

struct Decoding {
  const cuda::Launches& kernels;
  const at::Tensor& bytes;
  const at::Tensor& sum;  // undefined: none
  const at::Tensor& values;
  cuda::Stream stream;

  std::size_t count() const { return static_cast<std::size_t>(values.numel()); }
  const std::uint8_t* from() const { return bytes.const_data_ptr<std::uint8_t>(); }
  const float* before() const { return sum.defined() ? sum.const_data_ptr<float>() : nullptr; }
  float* to() const { return values.mutable_data_ptr<float>(); }
};

// The calls of one codec. Each returns a number of CUDA.
struct Calls {
  std::function<int(const Encoding&)> encode;
  std::function<int(const Decoding&)> decode;
};

Calls cast_calls(cuda::Half half) {
  return {[half](const Encoding& e) { return e.kernels.encode_cast(half, e.from(), e.count(), e.to(), e.stream); },
          [half](const Decoding& d) {
            return d.kernels.decode_cast(half, d.from(), d.count(), d.before(), d.to(), d.stream);
          }};
}

Calls integer_calls(int bits, bool stochastic, std::size_t block) {
  return {[=](const Encoding& e) {
            const compress::RandomSequence random(e.key, compress::kIntegerRounding);
            return e.kernels.encode_integer({bits, stochastic, random.key()}, {e.count(), block}, e.from(), e.to(),
                                            e.stream);
          },
          [=](const Decoding& d) {
            return d.kernels.decode_integer({bits, stochastic, {}}, {d.count(), block}, d.from(), d.before(), d.to(),
                                            d.stream);
          }};
}

Calls fp8_calls(const kernels::Fp8Kind& kind, std::size_t block) {
  return {[=](const Encoding& e) {
            return e.kernels.encode_fp8({kind}, {e.count(), block}, e.from(), e.to(), e.stream);
          },
          [=](const Decoding& d) {
            return d.kernels.decode_fp8({kind}, {d.count(), block}, d.from(), d.before(), d.to(), d.stream);
          }};
}

Calls one_bit_calls(std::size_t block) {
  return {[=](const Encoding& e) {
            return e.kernels.encode_one_bit({e.count(), block}, e.from(), e.to(), e.stream);
          },
          [=](const Decoding& d) {
            return d.kernels.decode_one_bit({d.count(), block}, d.from(), d.before(), d.to(), d.stream);
          }};
}

// The kernel, whose threads see a few values each, marks all but the zeros.
int encode_sign(const Encoding& e) {
  const int error = e.kernels.encode_sign(e.from(), e.count(), e.to(), e.stream);
  if (error != 0) return error;
  const at::Tensor mark = e.bytes.narrow(0, 0, 1);
  mark.masked_fill_(at::logical_not(at::any(e.values)), 2);
  return 0;
}

Calls sign_calls() {
  return {[](const Encoding& e) { return encode_sign(e); },
          [](const Decoding& d) { return d.kernels.decode_sign(d.from(), d.count(), d.before(), d.to(), d.stream); }};
}

Calls top_k_calls() {
  return {[](const Encoding& e) {
            const auto room = static_cast<std::int64_t>(e.kernels.top_k_workspace(e.count()));
            const at::Tensor workspace = at::empty({room}, e.bytes.options());
            const auto kept = static_cast<std::size_t>(e.bytes.numel()) / compress::kPairSize;
            return e.kernels.encode_top_k(e.from(), e.count(), kept, workspace.mutable_data_ptr(), e.to(), e.stream);
          },
          [](const Decoding& d) {
            const auto pairs = static_cast<std::size_t>(d.bytes.numel()) / compress::kPairSize;
            return d.kernels.decode_pairs(d.from(), pairs, d.count(), d.before(), d.to(), d.stream);
          }};
}

// Without functions for a codec that has no kernels.
Calls calls_of(const Codec& codec) {
  const std::string description = codec.name();
  const std::string name(split_name(description).name);
  if (name == "fp16") return cast_calls(cuda::Half::f16);
  if (name == "bf16") return cast_calls(cuda::Half::bf16);
  if (name == "fp8_e4m3") return fp8_calls(kernels::kFp8E4m3, codec.block());
  if (name == "fp8_e5m2") return fp8_calls(kernels::kFp8E5m2, codec.block());
  if (name == "int8" || name == "int4" || name == "int2")
    return integer_calls(name[3] - '0', description.ends_with("rounding=stochastic"), codec.block());
  if (name == "one_bit") return one_bit_calls(codec.block());
  if (name == "sign") return sign_calls();
  if (name == "top_k" || name == "dgc") return top_k_calls();
  return {};
}

class KernelCodec final : public DeviceCodec {
 public:
  KernelCodec(const Codec& codec, std::unique_ptr<DeviceCodec> operators, FindCodecKernels find, Calls calls)
      : codec_(codec), operators_(std::move(operators)), find_(find), calls_(std::move(calls)) {}

  at::Tensor encode(const at::Tensor& values, const EncodeKey& key) const override {
    const CodecKernels* const kernels = find_(values.device());
    const auto count = static_cast<std::size_t>(values.numel());
    const std::size_t size = codec_.encoded_size(count, key.step);
    if (kernels == nullptr || size == 0) return operators_->encode(values, key);
    compress::require_numbered(codec_, count);
    const c10::DeviceGuard here(values.device());
    const at::Tensor bytes = at::empty({static_cast<std::int64_t>(size)}, values.options().dtype(at::kByte));
    launch(*kernels, values.device(), [&] {
      return calls_.encode({kernels->launches, values, bytes, key, kernels->current_stream(values.device())});
    });
    return bytes;
  }
  at::Tensor decode(const at::Tensor& bytes, std::int64_t count, const EncodeKey& key) const override {
    const CodecKernels* const kernels = find_(bytes.device());
    if (kernels == nullptr || count == 0) return operators_->decode(bytes, count, key);
    return decoded(*kernels, bytes, count, key, {});
  }
  at::Tensor add_decoded(const at::Tensor& sum, const at::Tensor& bytes, const EncodeKey& key) const override {
    const CodecKernels* const kernels = find_(bytes.device());
    if (kernels == nullptr || sum.numel() == 0) return operators_->add_decoded(sum, bytes, key);
    return decoded(*kernels, bytes, sum.numel(), key, sum.contiguous());
  }

 private:
  at::Tensor decoded(const CodecKernels& kernels, const at::Tensor& bytes, std::int64_t count, const EncodeKey& key,
                     const at::Tensor& sum) const {
    require_encoding(codec_, bytes, count, key);
    const c10::DeviceGuard here(bytes.device());
    const at::Tensor values = at::empty({count}, bytes.options().dtype(at::kFloat));
    launch(kernels, bytes.device(), [&] {
      return calls_.decode({kernels.launches, bytes, sum, values, kernels.current_stream(bytes.device())});
    });
    return values;
  }
  // The guards of torch set the device of torch's runtime, and the kernels have a runtime of their own.
  template <class Call>
  void launch(const CodecKernels& kernels, const at::Device& device, const Call& call) const {
    int error = kernels.launches.use_device(device.index());
    if (error == 0) error = call();
    if (error == 0) return;
    throw ResourceError(concat("codec ", codec_.name(), ": a kernel did not start on ", device.str(), ": ",
                               kernels.launches.error_text(error),
                               "; an earlier call on this device may have failed. GRADWIRE_CUDA_KERNELS=off makes "
                               "gradwire use torch's operators instead"));
  }

  const Codec& codec_;
  const std::unique_ptr<DeviceCodec> operators_;
  const FindCodecKernels find_;
  const Calls calls_;
};

}  // namespace

const CodecKernels* find_codec_kernels(const at::Device& device) {
  if (!device.is_cuda()) return nullptr;
  static const bool off = environment("GRADWIRE_CUDA_KERNELS") == "off";
  return off ? nullptr : find_cuda_kernels(device);
}

std::unique_ptr<DeviceCodec> with_kernels(const Codec& codec, std::unique_ptr<DeviceCodec> operators,
                                          FindCodecKernels find) {
  Calls calls = calls_of(codec);
  if (!calls.encode) return operators;
  return std::make_unique<KernelCodec>(codec, std::move(operators), find, std::move(calls));
}

}  // namespace gradwire::internal
