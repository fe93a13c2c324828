// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/hooks/device/sparse_codecs_internal.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <bit>
#include <limits>
#include <vector>

#include "gradwire/compress/random_k_places_internal.h"
#include "gradwire/compress/sparse_internal.h"
#include "gradwire/hooks/device/dense_codecs_internal.h"
#include "gradwire/hooks/device/device_bits_internal.h"

namespace gradwire::internal {
namespace {

using compress::Codec;
using compress::EncodeKey;

constexpr auto kPair = static_cast<std::int64_t>(compress::kPairSize);

// Magnitudes as integers in the same order; infinity and NaN are the largest.
at::Tensor magnitudes_of(const at::Tensor& values) { return at::bitwise_and(bits_of(values), 0x7fffffff); }

// Pairs of an index and a value. `indices` ascend.
at::Tensor pairs_of(const at::Tensor& values, const at::Tensor& indices) {
  return as_bytes(at::stack({indices.to(at::kInt), bits_of(values.index_select(0, indices))}, 1));
}

at::Tensor values_of(const at::Tensor& bytes, std::int64_t count) {
  const at::Tensor values = at::zeros({count}, bytes.options().dtype(at::kFloat));
  if (bytes.numel() == 0 || count == 0) return values;
  const at::Tensor pairs = numbers_in(bytes, 0, bytes.numel() / 4, at::kInt).view({-1, 2});
  // Bytes of another rank must not lead beyond the values.
  const at::Tensor indices = at::clamp(pairs.select(1, 0).to(at::kLong), 0, count - 1);
  return at::index_copy(values, 0, indices, pairs.select(1, 1).contiguous().view(at::kFloat));
}

// The values of largest magnitude, of equal ones the first: top_k, and dgc, whose number of values the step decides.
class DeviceTopK final : public DeviceCodec {
 public:
  explicit DeviceTopK(const Codec& codec) : codec_(codec) {}
  at::Tensor encode(const at::Tensor& values, const EncodeKey& key) const override {
    const auto count = static_cast<std::size_t>(values.numel());
    compress::require_numbered(codec_, count);
    const auto kept = static_cast<std::int64_t>(codec_.encoded_size(count, key.step)) / kPair;
    if (kept == 0) return at::empty({0}, values.options().dtype(at::kByte));
    const at::Tensor magnitudes = magnitudes_of(values);
    const at::Tensor bar = at::amin(std::get<0>(at::topk(magnitudes, kept)), 0);
    const at::Tensor above = at::gt(magnitudes, bar);
    const at::Tensor equal = at::eq(magnitudes, bar);
    const at::Tensor left = kept - at::sum(above);
    const at::Tensor chosen = at::logical_or(above, at::logical_and(equal, at::le(at::cumsum(equal, 0), left)));
    return pairs_of(values, at::nonzero_static(chosen, kept).view({-1}));
  }
  at::Tensor decode(const at::Tensor& bytes, std::int64_t count, const EncodeKey& key) const override {
    require_encoding(codec_, bytes, count, key);
    return values_of(bytes, count);
  }

 private:
  const Codec& codec_;
};

class DeviceThreshold final : public DeviceCodec {
 public:
  DeviceThreshold(const Codec& codec, float threshold)
      : codec_(codec), least_(std::bit_cast<std::int32_t>(threshold)) {}
  at::Tensor encode(const at::Tensor& values, const EncodeKey&) const override {
    compress::require_numbered(codec_, static_cast<std::size_t>(values.numel()));
    return pairs_of(values, at::nonzero(at::ge(magnitudes_of(values), least_)).view({-1}));
  }
  at::Tensor decode(const at::Tensor& bytes, std::int64_t count, const EncodeKey&) const override {
    const auto size = static_cast<std::size_t>(bytes.numel());
    if (size % compress::kPairSize != 0)
      compress::refuse_bytes(codec_, static_cast<std::size_t>(count), size, "they are no whole pairs");
    return values_of(bytes, count);
  }

 private:
  const Codec& codec_;
  const std::int32_t least_;  // its bits
};

// A mark of infinity and NaN, then values at places that every rank knows.
class DeviceRandomK final : public DeviceCodec {
 public:
  DeviceRandomK(const Codec& codec, bool unbiased) : codec_(codec), unbiased_(unbiased) {}
  at::Tensor encode(const at::Tensor& values, const EncodeKey& key) const override {
    compress::require_numbered(codec_, static_cast<std::size_t>(values.numel()));
    if (values.numel() == 0) return at::empty({0}, values.options().dtype(at::kByte));
    const Places places = places_of(values.numel(), key, values.device());
    at::Tensor kept = values.index_select(0, places.indices);
    if (unbiased_) kept = kept * places.lengths;
    const at::Tensor mark = at::where(at::all(at::isfinite(values)), 0.0, kNan).to(at::kFloat).view({1});
    return as_bytes(at::cat({mark, kept}));
  }
  at::Tensor decode(const at::Tensor& bytes, std::int64_t count, const EncodeKey& key) const override {
    require_encoding(codec_, bytes, count, key);
    const at::Tensor values = at::zeros({count}, bytes.options().dtype(at::kFloat));
    if (count == 0) return values;
    const at::Tensor numbers = numbers_in(bytes, 0, bytes.numel() / 4, at::kFloat);
    const at::Tensor found = at::index_copy(values, 0, places_of(count, key, bytes.device()).indices,
                                            numbers.narrow(0, 1, numbers.numel() - 1));
    return at::where(at::isnan(numbers.narrow(0, 0, 1)), kNan, found).to(at::kFloat);
  }

 private:
  static constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  struct Places {
    at::Tensor indices;  // int64
    at::Tensor lengths;  // float32: of the stretches that they were drawn from
  };
  // The places depend on the key alone, so the host finds them.
  Places places_of(std::int64_t count, const EncodeKey& key, const at::Device& device) const {
    const auto number = codec_.max_encoded_size(static_cast<std::size_t>(count)) / 4 - 1;
    const at::Tensor indices = at::empty({static_cast<std::int64_t>(number)}, at::kLong);
    const at::Tensor lengths = at::empty({static_cast<std::int64_t>(number)}, at::kFloat);
    compress::RandomKPlaces places(key, static_cast<std::size_t>(count), number);
    for (std::size_t i = 0; i < number; ++i) {
      const auto place = places.next(i);
      indices.mutable_data_ptr<std::int64_t>()[i] = static_cast<std::int64_t>(place.index);
      lengths.mutable_data_ptr<float>()[i] = static_cast<float>(place.length);
    }
    return {indices.to(device), unbiased_ ? lengths.to(device) : lengths};
  }

  const Codec& codec_;
  const bool unbiased_;
};

}  // namespace

std::unique_ptr<DeviceCodec> make_device_top_k(const Codec& codec, Options& options) {
  for (const char* option : {"ratio", "ramp"}) static_cast<void>(options.number(option, 0.0));
  return std::make_unique<DeviceTopK>(codec);
}

std::unique_ptr<DeviceCodec> make_device_threshold(const Codec& codec, Options& options) {
  return std::make_unique<DeviceThreshold>(codec, options.number("threshold", 0.0f));
}

std::unique_ptr<DeviceCodec> make_device_random_k(const Codec& codec, Options& options) {
  static_cast<void>(options.number("ratio", 0.0));
  return std::make_unique<DeviceRandomK>(codec, options.flag("unbiased", false));
}

}  // namespace gradwire::internal
