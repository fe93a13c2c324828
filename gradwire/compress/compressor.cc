// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/compress/compressor.h"

#include <algorithm>
#include <cmath>

#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "gradwire/compress/exchange_internal.h"
#include "gradwire/kernels/quantize.h"

namespace gradwire::compress {
namespace {

void require_within(std::span<const Segment> segments, std::size_t count) {
  for (const Segment& segment : segments) {
    if (segment.offset <= count && segment.count <= count - segment.offset) continue;
    throw InvalidArgument(concat("compressor: parameter '", segment.name, "' has ", segment.count, " values from ",
                                 segment.offset, ", but there are ", count));
  }
}

bool is_finite(std::span<const float> values) noexcept {
  return std::isfinite(kernels::max_magnitude(values.data(), values.size()));
}

}  // namespace

// What one call works in.
struct Compressor::Scratch {
  Workspace workspace;
  std::vector<float> values;
  std::vector<float> delivered;
};

Compressor::Compressor(std::unique_ptr<Codec> codec, std::unique_ptr<Memory> memory, std::unique_ptr<Exchange> exchange,
                       std::uint64_t seed)
    : codec_(std::move(codec)), memory_(std::move(memory)), exchange_(std::move(exchange)), seed_(seed) {
  if (codec_ == nullptr || memory_ == nullptr || exchange_ == nullptr) {
    throw InvalidArgument("a compressor is made of a codec, a memory and an exchange; one of them is missing");
  }
}

Compressor::~Compressor() = default;

std::unique_ptr<Compressor::Scratch> Compressor::take_scratch() {
  const MutexLock lock(mutex_);
  if (idle_.empty()) {
    idle_.reserve(++made_);  // so that giving back cannot fail
    return std::make_unique<Scratch>();
  }
  auto scratch = std::move(idle_.back());
  idle_.pop_back();
  return scratch;
}

void Compressor::give_back(std::unique_ptr<Scratch> scratch) noexcept {
  const MutexLock lock(mutex_);
  idle_.push_back(std::move(scratch));
}

std::size_t Compressor::all_reduce(Transport& transport, std::span<const Segment> segments, const CompressCall& call,
                                   std::span<float> gradient) {
  require_within(segments, gradient.size());
  auto scratch = take_scratch();
  const std::size_t sent = run(transport, segments, call, gradient, *scratch);
  // After an error it goes, with what it holds.
  give_back(std::move(scratch));
  return sent;
}

std::size_t Compressor::run(Transport& transport, std::span<const Segment> segments, const CompressCall& call,
                            std::span<float> gradient, Scratch& scratch) {
  ExchangeCall exchange;
  exchange.key = {seed_, call.tensor, call.step, 0};
  exchange.divisor = call.divisor;
  exchange.values = gradient;
  exchange.mean = gradient;
  if (!memory_->remembers()) return exchange_->run(transport, *codec_, exchange, scratch.workspace);
  const auto values = room_in(scratch.values, gradient.size());
  std::copy(gradient.begin(), gradient.end(), values.begin());
  memory_->before(segments, transport.size(), values);
  exchange.values = values;
  exchange.delivered = room_in(scratch.delivered, gradient.size());
  const std::size_t sent = exchange_->run(transport, *codec_, exchange, scratch.workspace);
  if (is_finite(gradient)) memory_->after(segments, values, exchange.delivered, gradient);
  return sent;
}

std::string Compressor::name() const {
  std::string text = codec_->name();
  const std::string memory = memory_->name();
  const std::size_t colon = std::min(memory.find(':'), memory.size());
  text += concat(text.find(':') == std::string::npos ? ":" : ",", "memory=", memory.substr(0, colon));
  if (colon < memory.size()) text += concat(",", memory.substr(colon + 1));
  text += concat(",exchange=", exchange_->name());
  if (seed_ != 0) text += concat(",seed=", seed_);
  return text;
}

}  // namespace gradwire::compress
