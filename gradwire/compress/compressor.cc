// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/compress/compressor.h"

#include <algorithm>
#include <bit>
#include <deque>
#include <limits>
#include <utility>

#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "gradwire/compress/exchange_internal.h"

namespace gradwire::compress {
namespace {

void require_within(std::span<const Segment> segments, std::size_t count) {
  for (const Segment& segment : segments) {
    if (segment.offset > count || segment.count > count - segment.offset) {
      throw InvalidArgument(concat("compressor: parameter '", segment.name, "' has ", segment.count, " values from ",
                                   segment.offset, ", but there are ", count));
    }
    const std::size_t whole = segment.of_parameter();
    if (segment.first > whole || segment.count > whole - segment.first) {
      throw InvalidArgument(concat("compressor: a part of parameter '", segment.name, "' has ", segment.count,
                                   " values from ", segment.first, " of the parameter, which has ", whole));
    }
  }
}

// Throws what Memory::before() throws for a parameter of another size. Before anything is sent: a block's own before()
// comes too late for that.
void require_known_sizes(Memory& memory, std::span<const Segment> segments, int world) {
  std::vector<Segment> empty(segments.begin(), segments.end());
  for (Segment& segment : empty) segment = {segment.name, 0, 0, segment.first, segment.of_parameter()};
  memory.before(empty, world, {}, {});
}

// What the encoding of a piece takes, about: of the sizes tried at 100 Mbit/s and 1 Gbit/s the best, see
// docs/decisions/0011.
constexpr std::size_t kPieceBytes = std::size_t{1} << 19;
constexpr std::size_t kLeastPiece = std::size_t{1} << 18;
constexpr std::size_t kLargestPiece = std::size_t{1} << 22;
constexpr std::size_t kLeastChunk = std::size_t{1} << 16;  // of a piece, for one rank

// Puts the parts of `segments`, which ascend, that lie in the `count` values from `begin` into `within`, counted from
// there.
void find_within(const std::vector<Segment>& segments, std::size_t begin, std::size_t count,
                 std::vector<Segment>& within) {
  within.clear();
  const auto first = std::partition_point(segments.begin(), segments.end(), [begin](const Segment& segment) {
    return segment.offset + segment.count <= begin;
  });
  for (auto segment = first; segment != segments.end() && segment->offset < begin + count; ++segment) {
    const std::size_t from = std::max(segment->offset, begin);
    const std::size_t to = std::min(segment->offset + segment->count, begin + count);
    if (from >= to) continue;
    within.push_back(
        {segment->name, from - begin, to - from, segment->first + (from - segment->offset), segment->of_parameter()});
  }
}

}  // namespace

// What one piece works in.
struct Compressor::Scratch {
  Workspace workspace;
  std::vector<float> values;
};

// A part of a gradient on its way. What the memory adds and what it keeps is worked out block by block, as the exchange
// asks for it. Only where there are no blocks the values to send are made at once and kept.
class Compressor::Piece final : private ExchangeEnds {
 public:
  // Of the `gradient` from number `begin`. `segments`, of the whole gradient, ascend.
  Piece(Compressor& owner, Transport& transport, const std::vector<Segment>& segments, std::size_t begin,
        const EncodeKey& key, double divisor, std::span<float> gradient)
      : owner_(owner),
        segments_(segments),
        begin_(begin),
        world_(transport.size()),
        gradient_(gradient),
        scratch_(owner.take_scratch()) {
    if (owner_.codec_->block() == 0 || !owner_.memory_->works_by_value()) {
      if (owner_.memory_->remembers()) kept_ = make_values(0, room_in(scratch_->values, gradient.size()));
    }
    run_ = owner_.exchange_->start(transport, *owner_.codec_, {key, divisor, *this}, scratch_->workspace);
  }

  // As ExchangeRun::advance().
  bool advance() { return run_->advance(); }

  // After the last advance(); after an error the scratch goes, with what it holds.
  std::size_t end() {
    owner_.give_back(std::move(scratch_));
    return run_->sent();
  }

 private:
  std::span<float> mean() noexcept override { return gradient_; }
  bool keeps_values() const noexcept override { return !kept_.empty(); }
  bool takes_delivered() const noexcept override { return owner_.memory_->remembers(); }

  std::span<const float> values(std::size_t first, std::span<float> room) override {
    if (!owner_.memory_->remembers()) return gradient_.subspan(first, room.size());
    if (!kept_.empty()) return kept_.subspan(first, room.size());
    return make_values(first, room);
  }
  void deliver(std::size_t first, std::span<const float> values, std::span<const float> delivered) override {
    find_within(segments_, begin_ + first, values.size(), within_);
    owner_.memory_->after(within_, values, delivered, gradient_.subspan(first, values.size()));
  }

  std::span<const float> make_values(std::size_t first, std::span<float> room) {
    find_within(segments_, begin_ + first, room.size(), within_);
    owner_.memory_->before(within_, world_, gradient_.subspan(first, room.size()), room);
    return room;
  }

  Compressor& owner_;
  const std::vector<Segment>& segments_;
  const std::size_t begin_;
  const int world_;
  const std::span<float> gradient_;
  std::span<const float> kept_;  // the values to send, where there are no blocks
  std::vector<Segment> within_;  // a block; kept for its memory
  std::unique_ptr<Scratch> scratch_;
  std::unique_ptr<ExchangeRun> run_;  // goes first: what it sends lies in the scratch
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
  std::vector<Segment> ascending(segments.begin(), segments.end());
  std::sort(ascending.begin(), ascending.end(),
            [](const Segment& one, const Segment& other) { return one.offset < other.offset; });
  require_known_sizes(*memory_, ascending, transport.size());
  const std::size_t each = piece_values(transport.size());
  const std::size_t pieces = gradient.size() <= each ? 1 : divide_up(gradient.size(), each);
  std::deque<Piece> under_way;
  std::size_t sent = 0;
  for (std::size_t started = 0; started < pieces || !under_way.empty();) {
    if (started < pieces) {
      const std::size_t begin = started * each;
      const std::size_t count = std::min(each, gradient.size() - begin);
      under_way.emplace_back(*this, transport, ascending, begin,
                             EncodeKey{seed_, call.tensor, call.step, 0, static_cast<std::uint32_t>(started)},
                             call.divisor, gradient.subspan(begin, count));
      ++started;
    }
    // The newest first, so that there is something on its way while the older ones are worked on.
    bool first_goes_on = true;
    for (auto piece = under_way.rbegin(); piece != under_way.rend(); ++piece) first_goes_on = piece->advance();
    if (first_goes_on) continue;
    sent += under_way.front().end();
    under_way.pop_front();
  }
  return sent;
}

std::size_t Compressor::piece_values(int world) const noexcept {
  if (codec_->block() == 0 || !memory_->works_by_value()) return std::numeric_limits<std::size_t>::max();
  // The power of two below one and a half times as many as fit.
  const std::size_t fitting = kLargestPiece * kPieceBytes / codec_->max_encoded_size(kLargestPiece) * 3 / 2;
  const std::size_t piece = std::clamp(std::bit_floor(fitting), kLeastPiece, kLargestPiece);
  return std::max(piece, static_cast<std::size_t>(world) * kLeastChunk);
}

std::size_t Compressor::bytes_sent(std::size_t count, int world, std::uint64_t step) const {
  const std::size_t each = piece_values(world);
  const std::size_t rest = count % each;
  const std::size_t whole = count / each;
  const std::size_t of_whole = whole == 0 ? 0 : whole * exchange_->bytes_sent(*codec_, each, world, step);
  return of_whole + exchange_->bytes_sent(*codec_, rest, world, step);
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
