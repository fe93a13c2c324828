// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// One core that encodes and decodes.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "bench/codecs_command.h"
#include "bench/worker.h"
#include "gradwire/base/options.h"
#include "gradwire/compress/registry.h"
#include "gradwire/kernels/matrix.h"

namespace gradwire::bench {
namespace {

// N(0, 1), with seed 1.
std::vector<float> normal_values(std::size_t count) {
  std::vector<float> values(count);
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0, 1);
  for (float& value : values) value = normal(random);
  return values;
}

// Work on one size: prepared, run again and again with the same result.
class Task {
 public:
  virtual ~Task() = default;
  virtual void refill() {}
  virtual void run() = 0;
  virtual std::size_t encoded_bytes() const { return 0; }
};

class Copy final : public Task {
 public:
  Copy(std::span<const float> from, std::span<float> to) : from_(from), to_(to) {}
  void run() override { std::memcpy(to_.data(), from_.data(), from_.size_bytes()); }

 private:
  std::span<const float> from_;
  std::span<float> to_;
};

// A step past any warm-up of sparsity.
constexpr compress::EncodeKey kKey{.step = 1U << 30};

class Coding final : public Task {
 public:
  Coding(const std::string& codec, bool encodes, std::span<const float> values, std::span<float> decoded)
      : codec_(compress::make_codec(codec)),
        encodes_(encodes),
        values_(values),
        decoded_(decoded),
        bytes_(codec_->max_encoded_size(values.size())),
        size_(codec_->encode(values_, kKey, bytes_)) {}
  void run() override {
    if (encodes_) {
      codec_->encode(values_, kKey, bytes_);
    } else {
      codec_->decode(std::span(bytes_).first(size_), kKey, decoded_);
    }
  }
  std::size_t encoded_bytes() const override { return size_; }

 private:
  const std::unique_ptr<compress::Codec> codec_;
  const bool encodes_;
  const std::span<const float> values_;
  const std::span<float> decoded_;
  std::vector<std::byte> bytes_;
  const std::size_t size_;
};

// PowerSGD's products of square matrices, as many of 1024 x 1024 as the values are, or a smaller one.
class Products final : public Task {
 public:
  Products(const std::string& spec, const std::string& direction, std::span<const float> values,
           std::span<float> matrices)
      : rank_(Options(spec, split_name(spec).options).number("rank", std::size_t{1})),
        encodes_(direction != "decode"),
        decodes_(direction != "encode"),
        values_(values),
        matrices_(matrices),
        side_(std::min<std::size_t>(1024, static_cast<std::size_t>(std::sqrt(static_cast<double>(values.size()))))),
        count_(values.size() / (side_ * side_)),
        factors_(normal_values(2 * count_ * rank_ * side_)) {}

  // Numbers would grow from run to run.
  void refill() override {
    std::copy(values_.begin(), values_.end(), matrices_.begin());
    work_ = factors_;
  }
  void run() override {
    if (encodes_) {
      each([&](float* m, float* p, float* q) { kernels::skinny_product(m, side_, side_, q, rank_, p); });
      each([&](float* m, float* p, float* q) { kernels::skinny_product_transposed(m, side_, side_, p, rank_, q); });
    }
    if (decodes_) each([&](float* m, float* p, float* q) { kernels::expand(p, q, rank_, side_, side_, m, nullptr); });
  }
  std::size_t encoded_bytes() const override { return factors_.size() * sizeof(float); }

 private:
  template <class Product>
  void each(const Product& product) {
    const std::size_t factor = rank_ * side_;
    for (std::size_t i = 0; i < count_; ++i) {
      product(matrices_.data() + i * side_ * side_, work_.data() + i * factor, work_.data() + (count_ + i) * factor);
    }
  }

  const std::size_t rank_;
  const bool encodes_;
  const bool decodes_;
  const std::span<const float> values_;
  const std::span<float> matrices_;
  const std::size_t side_;
  const std::size_t count_;
  const std::vector<float> factors_;
  std::vector<float> work_;
};

class CodecSubject {
 public:
  void prepare(const Measurement& what) {
    const std::size_t count = what.bytes / sizeof(float);
    if (values_.size() != count) {
      task_.reset();
      values_ = normal_values(count);
      other_.assign(count, 0);
    }
    const std::size_t slash = what.variant.find('/');
    const std::string direction = what.variant.substr(0, slash);
    const std::string codec = slash == std::string::npos ? "" : what.variant.substr(slash + 1);
    if (codec.empty()) {
      task_ = std::make_unique<Copy>(values_, other_);
    } else if (split_name(codec).name == kProducts) {
      task_ = std::make_unique<Products>(codec, direction, values_, other_);
    } else {
      task_ = std::make_unique<Coding>(codec, direction == "encode", values_, other_);
    }
  }
  Task& task() { return *task_; }

 private:
  std::vector<float> values_;
  std::vector<float> other_;
  std::unique_ptr<Task> task_;
};

}  // namespace

void run_codec_worker(const CodecWorkerOptions& options) {
  if (options.pin) pin_to_processor(0);
  CodecSubject subject;
  serve(options.socket, "gradwire", 0,
        {[&](const Measurement& what) { subject.prepare(what); }, [&] { subject.task().refill(); }, [] {},
         [&] { subject.task().run(); }, [&] { return subject.task().encoded_bytes(); }});
}

}  // namespace gradwire::bench
