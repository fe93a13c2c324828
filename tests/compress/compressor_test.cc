// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// What compressor.h promises, for codecs, memories and exchanges in combination, between ranks that are threads.
#include "gradwire/compress/compressor.h"

#include <gtest/gtest.h>

#include <thread>

#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "tests/compress/ranks.h"

namespace gradwire::compress {
namespace {

using testing::all_codecs;
using testing::all_finite;
using testing::collect;
using testing::Floats;
using testing::gradient_like;
using testing::Kind;
using testing::RankContext;
using testing::same_bits;
using testing::transport_of;

void run_threads(int world, const std::function<void(RankContext&)>& body) { run_world({Kind::threads, world}, body); }

std::string with(const std::string& codec, const std::string& memory, const std::string& exchange) {
  return concat(codec, codec.find(':') == std::string::npos ? ":" : ",", "memory=", memory, ",exchange=", exchange);
}

// Three parameters that fill 300 values.
const std::vector<Segment> kSegments{{"a", 0, 100}, {"b", 100, 7}, {"c", 107, 193}};

// Drawing many numbers would take most of a test.
Floats repeated_gradient(std::size_t count, std::uint64_t seed) {
  const Floats drawn = gradient_like(4099, seed);
  Floats values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = drawn[i % drawn.size()];
  return values;
}

void expect_same_on_all(Transport& transport, const Floats& values) {
  for (const Floats& other : collect(transport, values)) ASSERT_TRUE(same_bits(other, values));
}

TEST(CompressorCombinations, AllGiveTheSameBitsOnAllRanksAndInEveryRun) {
  for (const int world : {2, 3}) {
    run_threads(world, [](RankContext& context) {
      auto transport = transport_of(context);
      for (const std::string& codec : all_codecs()) {
        for (const char* memory : {"none", "error_feedback", "ef21", "momentum"}) {
          for (const char* exchange : {"all_gather", "all_reduce"}) {
            const std::string description = with(codec, memory, exchange);
            SCOPED_TRACE(description);
            const auto first = make_compressor(description);
            const auto second = make_compressor(description);
            for (std::uint64_t step = 0; step < 4; ++step) {
              const Floats gradient = gradient_like(300, step * 10 + static_cast<std::uint64_t>(context.rank()));
              Floats mean = gradient;
              first->all_reduce(transport, kSegments, {.tensor = 1, .step = step, .divisor = 0}, mean);
              expect_same_on_all(transport, mean);
              Floats again = gradient;
              second->all_reduce(transport, kSegments, {.tensor = 1, .step = step, .divisor = 0}, again);
              ASSERT_TRUE(same_bits(again, mean));
              ASSERT_TRUE(all_finite(mean));
            }
            ASSERT_EQ(first->memory().save(), second->memory().save());
          }
        }
      }
    });
  }
}

std::span<const float> chunk_of(const Floats& values, int world, int r) {
  const std::size_t begin = chunk_begin(values.size(), world, r);
  return std::span(values).subspan(begin, chunk_begin(values.size(), world, r + 1) - begin);
}

// One compressed all-reduce in steps that each take the whole vector, as exchange.h and docs/algorithms.md describe it.
// Encodings go to all ranks, by an all-gather of this test's own.
class PlainComposition {
 public:
  PlainComposition(Transport& transport, const Codec& codec, Memory& memory, const CompressCall& call)
      : transport_(transport), codec_(codec), memory_(memory), call_(call) {}

  void run(bool twice, std::span<const Segment> segments, Floats& gradient) {
    values_.resize(gradient.size());
    mean_.resize(gradient.size());
    delivered_.resize(gradient.size());
    memory_.before(segments, world(), gradient, values_);
    if (twice) {
      all_reduce();
    } else {
      all_gather();
    }
    gradient = mean_;
    if (all_finite(mean_)) memory_.after(segments, values_, delivered_, gradient);
  }

 private:
  int world() const { return transport_.size(); }
  EncodeKey key(std::uint64_t tensor, int rank) const {
    return {0, tensor, call_.step, static_cast<std::uint32_t>(rank)};
  }
  static std::vector<std::byte> encode(const Codec& codec, std::span<const float> values, const EncodeKey& key) {
    std::vector<std::byte> bytes(codec.max_encoded_size(values.size()));
    bytes.resize(codec.encode(values, key, bytes));
    return bytes;
  }
  // Every rank's `mine`, on all ranks; at most `most` bytes.
  std::vector<std::vector<std::byte>> gather(const std::vector<std::byte>& mine, std::size_t most) {
    std::vector<std::byte> slot(sizeof(std::size_t) + most);
    const std::size_t size = mine.size();
    std::memcpy(slot.data(), &size, sizeof(size));
    std::copy(mine.begin(), mine.end(), slot.begin() + sizeof(size));
    std::vector<std::byte> all(slot.size() * static_cast<std::size_t>(world()));
    transport_.all_gather(slot, all);
    std::vector<std::vector<std::byte>> parts;
    for (std::size_t at = 0; at < all.size(); at += slot.size()) {
      std::size_t length = 0;
      std::memcpy(&length, all.data() + at, sizeof(length));
      const auto from = all.begin() + static_cast<std::ptrdiff_t>(at + sizeof(length));
      parts.emplace_back(from, from + static_cast<std::ptrdiff_t>(length));
    }
    return parts;
  }

  void all_gather() {
    const std::size_t count = values_.size();
    const auto mine = encode(codec_, values_, key(call_.tensor, transport_.rank()));
    const auto all = gather(mine, codec_.max_encoded_size(count));
    for (int r = 0; r < world(); ++r) {
      Floats decoded(count);
      codec_.decode(all[static_cast<std::size_t>(r)], key(call_.tensor, r), decoded);
      if (r == transport_.rank()) delivered_ = decoded;
      for (std::size_t i = 0; i < count; ++i) mean_[i] = r == 0 ? decoded[i] : mean_[i] + decoded[i];
    }
    for (float& value : mean_) value /= static_cast<float>(world());
  }

  void all_reduce() {
    const auto ranks = static_cast<std::uint64_t>(world());
    const std::size_t most = codec_.max_encoded_size(chunk_of(values_, world(), 0).size());
    for (int c = 0; c < world(); ++c) {
      const std::uint64_t tensor = call_.tensor * ranks + static_cast<std::uint64_t>(c);
      const auto chunk = chunk_of(values_, world(), c);
      const std::size_t begin = chunk_begin(values_.size(), world(), c);
      const auto parts = gather(encode(codec_, chunk, key(tensor, transport_.rank())), most);
      Floats own(chunk.begin(), chunk.end());  // as it goes into the sum of its owner, when that is this rank
      Floats sum(chunk.size());
      for (int r = 0; r < world(); ++r) {
        Floats decoded(chunk.size());
        codec_.decode(parts[static_cast<std::size_t>(r)], key(tensor, r), decoded);
        if (r == transport_.rank()) std::copy(decoded.begin(), decoded.end(), delivered_.begin() + as_offset(begin));
        if (r == c && c == transport_.rank() && !codec_.keeps_scale()) own = decoded;
        if (r == c && c == transport_.rank()) decoded = own;
        for (std::size_t i = 0; i < sum.size(); ++i) sum[i] = r == 0 ? decoded[i] : sum[i] + decoded[i];
      }
      Floats mean = sum;
      for (float& value : mean) value /= static_cast<float>(world());
      const EncodeKey second = key(tensor, world() + c);
      const auto encodings = gather(encode(codec_.for_means(), mean, second), most);
      codec_.for_means().decode(encodings[static_cast<std::size_t>(c)], second, mean);
      std::copy(mean.begin(), mean.end(), mean_.begin() + as_offset(begin));
      if (c != transport_.rank()) continue;
      for (std::size_t i = 0; i < mean.size(); ++i) {
        delivered_[begin + i] = own[i] - (sum[i] - static_cast<float>(world()) * mean[i]);
      }
    }
  }
  static std::ptrdiff_t as_offset(std::size_t index) { return static_cast<std::ptrdiff_t>(index); }

  Transport& transport_;
  const Codec& codec_;
  Memory& memory_;
  const CompressCall call_;
  Floats values_;
  Floats mean_;
  Floats delivered_;
};

// The compressor works from block to block; what comes out must not show that. Lengths with no block, one, several, and
// with a last one that is shorter. In one step a rank has a NaN in its last block: then no block may have changed the
// memory.
TEST(Blocks, GiveTheBitsOfThePlainComposition) {
  const std::vector<std::size_t> counts = testing::counts_of({0, 1, 300, 30'001}, {1, 30'001});
  run_threads(3, [&counts](RankContext& context) {
    auto transport = transport_of(context);
    // Under the thread sanitizer a codec of each kind: the threads do the same with all others, and take minutes.
    std::vector<std::string> codecs =
        testing::kThreadSanitizer ? std::vector<std::string>{"fp16", "int4:block=64", "sign", "top_k:ratio=0.05"}
                                  : all_codecs();
    codecs.insert(codecs.end(), {"one_bit", "int8:block=16384", "fp8_e4m3:block=3"});
    for (const std::string& codec : codecs) {
      for (const char* memory : {"none", "error_feedback", "ef21", "momentum", "momentum,clip=50"}) {
        for (const std::string& exchange : known_exchanges()) {
          for (const std::size_t count : counts) {
            SCOPED_TRACE(concat(with(codec, memory, exchange), " ", count));
            // In no order, with values between them that belong to none.
            const std::size_t half = count / 2;
            std::vector<Segment> segments{{"b", half + count % 2, half}, {"a", 0, half / 2}};
            if (count < 4) segments.clear();
            const auto blocks = make_compressor(with(codec, memory, exchange));
            const auto plain = make_compressor(with(codec, memory, exchange));
            if (std::string(memory) == "ef21" &&
                count >= 4) {  // a rank that joins: it knows what the others have, and no more
              const MemoryState joined{{"aggregate/a", Floats(half / 2, 2)}, {"aggregate/b", Floats(half, 1)}};
              blocks->memory().load(joined);
              plain->memory().load(joined);
            }
            for (std::uint64_t step = 0; step < 3; ++step) {
              Floats first = repeated_gradient(count, step * 10 + static_cast<std::uint64_t>(context.rank()));
              if (step == 1 && context.rank() == 1 && count > 0) first.back() = testing::kNan;
              Floats second = first;
              const CompressCall call{.tensor = 5, .step = step, .divisor = 0};
              blocks->all_reduce(transport, segments, call, first);
              PlainComposition(transport, plain->codec(), plain->memory(), call)
                  .run(exchange == "all_reduce", segments, second);
              ASSERT_EQ(all_finite(first), all_finite(second));
              if (step != 1) {
                ASSERT_TRUE(same_bits(first, second)) << step;
              }
              ASSERT_EQ(blocks->memory().save(), plain->memory().save()) << step;
            }
          }
        }
      }
    }
  });
}

// The sum of all gradients = the sum of all means, times the ranks, + what the ranks still owe; in float64.
void expect_nothing_lost(const std::string& description, const std::string& owed_prefix) {
  run_threads(3, [&](RankContext& context) {
    SCOPED_TRACE(description);
    auto transport = transport_of(context);
    const auto compressor = make_compressor(description);
    std::vector<double> difference(300);
    double scale = 0;
    for (std::uint64_t step = 0; step < 50; ++step) {
      Floats values = gradient_like(300, step * 10 + static_cast<std::uint64_t>(context.rank()));
      for (const Floats& gradient : collect(transport, values)) {
        for (std::size_t i = 0; i < 300; ++i) difference[i] += double{gradient[i]};
      }
      compressor->all_reduce(transport, kSegments, {.tensor = 1, .step = step, .divisor = 0}, values);
      for (std::size_t i = 0; i < 300; ++i) {
        difference[i] -= 3 * double{values[i]};
        scale = std::max(scale, std::fabs(double{values[i]}));
      }
    }
    const MemoryState state = compressor->memory().save();
    for (const Segment& segment : kSegments) {
      const auto& own = state.at(concat(owed_prefix, segment.name));
      for (const Floats& owed : collect(transport, own)) {
        for (std::size_t i = 0; i < owed.size(); ++i) {
          difference[segment.offset + i] -= double{owed[i]};
          scale = std::max(scale, std::fabs(double{owed[i]}));
        }
      }
    }
    // 50 steps, each of which rounds a few times.
    for (std::size_t i = 0; i < 300; ++i) ASSERT_NEAR(difference[i], 0, 200 * 6e-8 * scale) << i;
  });
}

TEST(ErrorFeedbackOverManySteps, LosesNothing) {
  for (const std::string& codec : all_codecs()) {
    if (!make_codec(codec)->keeps_scale()) continue;  // what is owed then grows without bound
    for (const std::string& exchange : known_exchanges()) {
      expect_nothing_lost(with(codec, "error_feedback", exchange), "local/residual/");
    }
  }
}

TEST(MomentumMemoryOverManySteps, LosesNothingWithoutMomentum) {
  for (const std::string& exchange : known_exchanges()) {
    expect_nothing_lost(with("top_k:ratio=0.05", "momentum", exchange) + ",momentum=0", "local/velocity/");
    expect_nothing_lost(with("int4:block=64", "momentum", exchange) + ",momentum=0", "local/velocity/");
  }
}

// Of gradients that stay as they are EF21 learns the mean.
TEST(Ef21OverManySteps, ComesToTheMean) {
  for (const std::string codec : {"top_k:ratio=0.05", "int4:block=64", "one_bit:block=64", "fp16"}) {
    for (const std::string& exchange : known_exchanges()) {
      run_threads(3, [&](RankContext& context) {
        SCOPED_TRACE(concat(codec, " ", exchange));
        auto transport = transport_of(context);
        const auto compressor = make_compressor(with(codec, "ef21", exchange));
        const Floats gradient = gradient_like(300, static_cast<std::uint64_t>(context.rank()));
        Floats mean;
        for (std::uint64_t step = 0; step < 400; ++step) {
          mean = gradient;
          compressor->all_reduce(transport, kSegments, {.tensor = 1, .step = step, .divisor = 0}, mean);
        }
        const auto all = collect(transport, gradient);
        for (std::size_t i = 0; i < 300; ++i) {
          ASSERT_NEAR(mean[i], (all[0][i] + all[1][i] + all[2][i]) / 3, 1e-2) << i;
        }
      });
    }
  }
}

TEST(NotFinite, LeavesAllMemoriesAsTheyWereAndTheNextStepIsFine) {
  run_threads(3, [](RankContext& context) {
    auto transport = transport_of(context);
    for (const std::string& codec : all_codecs()) {
      for (const char* memory : {"none", "error_feedback", "ef21", "momentum"}) {
        for (const std::string& exchange : known_exchanges()) {
          SCOPED_TRACE(with(codec, memory, exchange));
          const auto compressor = make_compressor(with(codec, memory, exchange));
          const auto gradient = gradient_like(300, static_cast<std::uint64_t>(context.rank()));
          Floats values = gradient;
          compressor->all_reduce(transport, kSegments, {.tensor = 1, .step = 0, .divisor = 0}, values);
          const MemoryState before = compressor->memory().save();
          for (const float poison : {testing::kInfinity, testing::kNan}) {
            values = gradient;
            if (context.rank() == 1) values[250] = poison;
            compressor->all_reduce(transport, kSegments, {.tensor = 1, .step = 1, .divisor = 0}, values);
            ASSERT_FALSE(all_finite(values));
            expect_same_on_all(transport, values);
            ASSERT_EQ(compressor->memory().save(), before);
          }
          values = gradient;
          compressor->all_reduce(transport, kSegments, {.tensor = 1, .step = 2, .divisor = 0}, values);
          ASSERT_TRUE(all_finite(values));
        }
      }
    }
  });
}

// With a codec of single values, buckets make no difference to what each parameter is owed.
TEST(Buckets, DoNotMatterToTheMemory) {
  run_threads(2, [](RankContext& context) {
    auto transport = transport_of(context);
    for (const char* memory : {"error_feedback", "ef21", "momentum"}) {
      const auto one = make_compressor(with("bf16", memory, "all_gather"));
      const auto two = make_compressor(with("bf16", memory, "all_gather"));
      for (std::uint64_t step = 0; step < 5; ++step) {
        const Floats gradient = gradient_like(300, step * 10 + static_cast<std::uint64_t>(context.rank()));
        Floats all = gradient;
        one->all_reduce(transport, kSegments, {.tensor = 1, .step = step, .divisor = 0}, all);
        Floats back(gradient.begin() + 107, gradient.end());  // c, then b
        back.insert(back.end(), gradient.begin() + 100, gradient.begin() + 107);
        two->all_reduce(transport, std::vector<Segment>{{"c", 0, 193}, {"b", 193, 7}},
                        {.tensor = 2, .step = step, .divisor = 0}, back);
        Floats front(gradient.begin(), gradient.begin() + 100);
        two->all_reduce(transport, std::vector<Segment>{{"a", 0, 100}}, {.tensor = 3, .step = step, .divisor = 0},
                        front);
        front.insert(front.end(), back.begin() + 193, back.end());
        front.insert(front.end(), back.begin(), back.begin() + 193);
        ASSERT_TRUE(same_bits(front, all));
        ASSERT_EQ(one->memory().save(), two->memory().save());
      }
    }
  });
}

TEST(State, GoesOnAfterLoadingWithTheSameBits) {
  run_threads(2, [](RankContext& context) {
    auto transport = transport_of(context);
    for (const std::string& codec : all_codecs()) {
      for (const char* memory : {"error_feedback", "ef21", "momentum"}) {
        const auto first = make_compressor(with(codec, memory, "all_reduce"));
        const auto second = make_compressor(with(codec, memory, "all_reduce"));
        for (std::uint64_t step = 0; step < 8; ++step) {
          const Floats gradient = gradient_like(300, step * 10 + static_cast<std::uint64_t>(context.rank()));
          Floats a = gradient;
          first->all_reduce(transport, kSegments, {.tensor = 1, .step = step, .divisor = 0}, a);
          if (step == 3) second->memory().load(first->memory().save());
          if (step <= 3) continue;
          Floats b = gradient;
          second->all_reduce(transport, kSegments, {.tensor = 1, .step = step, .divisor = 0}, b);
          ASSERT_TRUE(same_bits(a, b)) << codec << " " << memory;
        }
      }
    }
  });
}

// Ranks that go on in another number: what all together owe stays the same.
TEST(State, MovesToAnotherWorld) {
  std::vector<MemoryState> states(3);
  run_threads(3, [&](RankContext& context) {
    auto transport = transport_of(context);
    const auto compressor = make_compressor("top_k:ratio=0.05,memory=ef21");
    for (std::uint64_t step = 0; step < 5; ++step) {
      Floats gradient = gradient_like(300, static_cast<std::uint64_t>(context.rank()));
      compressor->all_reduce(transport, kSegments, {.tensor = 1, .step = step, .divisor = 0}, gradient);
    }
    states[static_cast<std::size_t>(context.rank())] = compressor->memory().save();
  });
  const MemoryState moved = average_local(states);
  for (const Segment& segment : kSegments) {
    const auto& estimate = moved.at(concat("local/estimate/", segment.name));
    const auto& aggregate = moved.at(concat("aggregate/", segment.name));
    for (std::size_t i = 0; i < segment.count; ++i) ASSERT_NEAR(estimate[i], aggregate[i], 1e-5);
  }
}

// Two parameters over a piece and a half; the second begins in the first piece.
constexpr std::size_t kLong = (std::size_t{3} << 19) + 3;
const std::vector<Segment> kLongSegments{{"a", 0, 700'001}, {"b", 700'001, kLong - 700'001}};

Floats long_gradient(std::uint64_t seed) { return repeated_gradient(kLong, seed); }

// Each piece is an exchange of its own, so what a long gradient becomes is worked out piece by piece, without memory.
TEST(Pieces, AreExchangesOfTheirOwn) {
  run_threads(2, [](RankContext& context) {
    auto transport = transport_of(context);
    for (const char* codec : {"int8:block=64", "fp16"}) {
      for (const std::string& exchange : known_exchanges()) {
        const auto compressor = make_compressor(with(codec, "none", exchange));
        SCOPED_TRACE(compressor->name());
        const std::size_t each = compressor->piece_values(2);
        ASSERT_LT(each, kLong);
        const Floats gradient = long_gradient(static_cast<std::uint64_t>(context.rank()));
        Floats whole = gradient;
        testing::CountingTransport counting(transport);
        const std::size_t sent =
            compressor->all_reduce(counting, kLongSegments, {.tensor = 1, .step = 0, .divisor = 0}, whole);
        EXPECT_EQ(sent, counting.sent());
        EXPECT_EQ(sent, compressor->bytes_sent(kLong, 2));
        Floats by_pieces;
        for (std::size_t begin = 0; begin < kLong; begin += each) {
          const auto end = gradient.begin() + static_cast<std::ptrdiff_t>(std::min(kLong, begin + each));
          Floats piece(gradient.begin() + static_cast<std::ptrdiff_t>(begin), end);
          Workspace workspace;
          testing::SpanEnds ends(piece, piece, {});
          make_exchange(exchange)->run(transport, *make_codec(codec), {{}, 0, ends}, workspace);
          by_pieces.insert(by_pieces.end(), piece.begin(), piece.end());
        }
        ASSERT_TRUE(same_bits(whole, by_pieces));
      }
    }
  });
}

// Tensors of different numbers of pieces, on one rank: the same values are rounded in other ways.
TEST(Pieces, OfAllTensorsDrawTheirOwnRandomNumbers) {
  run_threads(1, [](RankContext& context) {
    auto transport = transport_of(context);
    const auto compressor = make_compressor("int4:block=64,rounding=stochastic,memory=none,exchange=all_gather");
    const std::size_t each = compressor->piece_values(1);
    const Floats once = repeated_gradient(each, 1);
    std::vector<Floats> rounded;
    for (const std::size_t pieces : {1, 2, 3}) {
      for (const std::uint64_t tensor : {0, 1, 2}) {
        Floats gradient;
        for (std::size_t i = 0; i < pieces; ++i) gradient.insert(gradient.end(), once.begin(), once.end());
        // Tensors of one piece and of several, under numbers that no two share.
        compressor->all_reduce(transport, {}, {.tensor = 3 * tensor + pieces - 1, .step = 0, .divisor = 0}, gradient);
        for (std::size_t i = 0; i < pieces; ++i) {
          const auto from = gradient.begin() + static_cast<std::ptrdiff_t>(i * each);
          rounded.emplace_back(from, from + static_cast<std::ptrdiff_t>(each));
        }
      }
    }
    for (std::size_t i = 0; i < rounded.size(); ++i) {
      for (std::size_t j = 0; j < i; ++j) ASSERT_FALSE(same_bits(rounded[i], rounded[j])) << j << " and " << i;
    }
  });
}

// Whichever transport, and whatever a memory keeps: it keeps it where the parameter's value is.
TEST(Pieces, OnTheirWayTogetherGiveTheSameBits) {
  run_threads(2, [](RankContext& context) {
    auto transport = transport_of(context);
    for (const std::string& description :
         {with("int8:rounding=stochastic", "error_feedback", "all_reduce"), with("fp8_e4m3", "ef21", "all_gather"),
          with("int8", "momentum", "all_reduce")}) {
      SCOPED_TRACE(description);
      testing::LateTransport late(transport);
      const auto at_once = make_compressor(description);
      const auto overlapped = make_compressor(description);
      for (std::uint64_t step = 0; step < 2; ++step) {
        const Floats gradient = long_gradient(step * 10 + static_cast<std::uint64_t>(context.rank()));
        const CompressCall call{.tensor = 1, .step = step, .divisor = 0};
        Floats first = gradient;
        at_once->all_reduce(transport, kLongSegments, call, first);
        Floats second = gradient;
        overlapped->all_reduce(late, kLongSegments, call, second);
        ASSERT_TRUE(same_bits(first, second));
      }
      ASSERT_EQ(at_once->memory().save(), overlapped->memory().save());
      EXPECT_GE(late.most_under_way(), 2);
    }
  });
}

// What both ranks gave and do not owe is what arrived, value by value.
TEST(Pieces, AMemoryIsOwedWhatEachLost) {
  run_threads(2, [](RankContext& context) {
    auto transport = transport_of(context);
    const auto compressor = make_compressor(with("int8:block=64", "error_feedback", "all_gather"));
    const Floats gradient = long_gradient(static_cast<std::uint64_t>(context.rank()));
    Floats mean = gradient;
    compressor->all_reduce(transport, kLongSegments, {.tensor = 1, .step = 0, .divisor = 0}, mean);
    const MemoryState state = compressor->memory().save();
    Floats owed = state.at("local/residual/a");
    owed.insert(owed.end(), state.at("local/residual/b").begin(), state.at("local/residual/b").end());
    ASSERT_EQ(owed.size(), kLong);
    const auto gradients = collect(transport, gradient);
    const auto all_owed = collect(transport, owed);
    for (std::size_t i = 0; i < kLong; ++i) {
      const double delivered =
          double{gradients[0][i]} + double{gradients[1][i]} - double{all_owed[0][i]} - double{all_owed[1][i]};
      ASSERT_NEAR(2 * double{mean[i]}, delivered, 1e-5) << i;
    }
  });
}

TEST(Pieces, WhatCompetesForPlacesOrIsClippedByParameterStaysWhole) {
  for (const char* whole : {"top_k:ratio=0.01", "random_k", "threshold", "int8:memory=momentum,clip=1"})
    EXPECT_EQ(make_compressor(whole)->piece_values(2), std::numeric_limits<std::size_t>::max()) << whole;
}

// About half a megabyte of encoding, and more where many ranks share it.
TEST(Pieces, AreAsLongAsTheirEncodingsAreShort) {
  EXPECT_EQ(make_compressor("fp16")->piece_values(2), std::size_t{1} << 18);
  EXPECT_EQ(make_compressor("int8:memory=momentum")->piece_values(2), std::size_t{1} << 19);
  EXPECT_EQ(make_compressor("int4")->piece_values(2), std::size_t{1} << 20);
  EXPECT_EQ(make_compressor("one_bit")->piece_values(2), std::size_t{1} << 22);
  EXPECT_EQ(make_compressor("fp16")->piece_values(64), std::size_t{1} << 22);
}

TEST(Lanes, TwoTensorsAtOnceGiveWhatOneAfterTheOtherGives) {
  run_threads(2, [](RankContext& context) {
    const std::vector<std::vector<Segment>> segments{{{"a", 0, 20000}}, {{"b", 0, 15000}, {"c", 15000, 9000}}};
    const auto serial = make_compressor("int4:block=64,exchange=all_reduce");
    const auto parallel = make_compressor("int4:block=64,exchange=all_reduce");
    const auto gradient_of = [&](std::size_t lane, std::uint64_t step) {
      return gradient_like(lane == 0 ? 20000 : 24000,
                           step * 100 + lane * 10 + static_cast<std::uint64_t>(context.rank()));
    };
    std::vector<std::vector<Floats>> results(2);
    const auto lane_channel = context.channel().duplicate(testing::guarded());
    const auto run_lane = [&](std::size_t lane, Channel& channel) {
      ChannelTransport transport(channel, {.timeout = testing::kGuard, .tag = {}});
      for (std::uint64_t step = 0; step < 20; ++step) {
        results[lane].push_back(gradient_of(lane, step));
        parallel->all_reduce(transport, segments[lane], {.tensor = lane, .step = step, .divisor = 0},
                             results[lane].back());
      }
    };
    std::thread other([&] { run_lane(1, *lane_channel); });
    run_lane(0, context.channel());
    other.join();
    auto transport = transport_of(context);
    for (std::uint64_t step = 0; step < 20; ++step) {
      for (const std::size_t lane : {0, 1}) {
        Floats gradient = gradient_of(lane, step);
        serial->all_reduce(transport, segments[lane], {.tensor = lane, .step = step, .divisor = 0}, gradient);
        ASSERT_TRUE(same_bits(gradient, results[lane][step])) << "lane " << lane << ", step " << step;
      }
    }
    EXPECT_EQ(serial->memory().save(), parallel->memory().save());
  });
}

// Each rank pulls towards a point of its own; the best point is their mean. In two places the ranks pull hard against
// each other, for ever, so a rank that sends only its largest values sends nothing else.
TEST(Convergence, TopKNeedsAMemory) {
  run_threads(2, [](RankContext& context) {
    auto transport = transport_of(context);
    const std::size_t count = 100;
    const std::vector<Segment> segments{{"x", 0, count}};
    Floats target = gradient_like(count, 40 + static_cast<std::uint64_t>(context.rank()));
    for (float& value : target) value = std::clamp(value, -1.0f, 1.0f);
    target[10] = target[20] = context.rank() == 0 ? 5.0f : -5.0f;
    const auto targets = collect(transport, target);
    const auto distance_after = [&](const std::string& description) {
      const auto compressor = make_compressor(description);
      Floats x(count, 2.0f);
      Floats gradient(count);
      for (std::uint64_t step = 0; step < 1500; ++step) {
        for (std::size_t i = 0; i < count; ++i) gradient[i] = x[i] - target[i];
        compressor->all_reduce(transport, segments, {.tensor = 1, .step = step, .divisor = 0}, gradient);
        for (std::size_t i = 0; i < count; ++i) x[i] -= 0.02f * gradient[i];
      }
      double squares = 0;
      for (std::size_t i = 0; i < count; ++i) {
        const double off = double{x[i]} - (double{targets[0][i]} + double{targets[1][i]}) / 2;
        squares += off * off;
      }
      return std::sqrt(squares);
    };
    const double without = distance_after("top_k:ratio=0.02,memory=none");
    EXPECT_GT(without, 5);
    EXPECT_LT(distance_after("top_k:ratio=0.02,memory=error_feedback"), without / 5);
    EXPECT_LT(distance_after("top_k:ratio=0.02,memory=error_feedback,exchange=all_reduce"), without / 5);
    EXPECT_LT(distance_after("top_k:ratio=0.02,memory=ef21"), without / 5);
  });
}

TEST(MakeCompressor, ItsNameMakesIt) {
  for (const CompressorInfo& info : known_compressors()) {
    const auto compressor = make_compressor(info.name);
    EXPECT_EQ(make_compressor(compressor->name())->name(), compressor->name());
    const std::string name = compressor->name();
    EXPECT_NE(name.find(concat("memory=", info.memory)), std::string::npos) << name;
    EXPECT_NE(name.find(concat("exchange=", info.exchange)), std::string::npos) << name;
  }
  EXPECT_EQ(make_compressor("sign_sgd")->name(), "sign:memory=none,exchange=all_reduce");
  EXPECT_EQ(make_compressor("int4:block=64,memory=error_feedback,exchange=all_reduce,seed=7")->name(),
            "int4:block=64,memory=error_feedback,exchange=all_reduce,seed=7");
  EXPECT_EQ(make_compressor("dgc:clip=2.5")->name(),
            "dgc:ratio=0.001,ramp=1000,memory=momentum,momentum=0.9,clip=2.5,exchange=all_gather");
  EXPECT_EQ(make_compressor("random_k:unbiased=1")->memory().name(), "none");
  EXPECT_EQ(known_compressors().size(), known_codecs().size() + 1);
}

TEST(MakeCompressor, ListsTheRightOnesOnAWrongOne) {
  const auto message_of = [](const std::string& description) -> std::string {
    try {
      make_compressor(description);
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "accepted";
  };
  const auto expect = [&](const std::string& description, const std::string& part) {
    EXPECT_NE(message_of(description).find(part), std::string::npos) << message_of(description);
  };
  expect("zip", "known are fp16");
  expect("zip", "sign_sgd");
  expect("int4:size=3", "block=256,rounding=nearest|stochastic,memory=error_feedback|");
  expect("int4:memory=elephant", "error_feedback, ef21, momentum, none");
  expect("int4:exchange=ring", "all_reduce, all_gather");
  expect("int4:momentum=0.9", "has no option 'momentum'");
  expect("int4:memory=momentum,momentum=1", "must be from 0 to below 1");
  expect("sign_sgd:memory=none", "its options are seed=0");
  expect("int4:block=7", "multiple of 8");
}

TEST(CompressorArguments, AreChecked) {
  run_threads(1, [](RankContext& context) {
    auto transport = transport_of(context);
    Floats gradient(10);
    const auto compressor = make_compressor("fp16");
    EXPECT_THROW(compressor->all_reduce(transport, std::vector<Segment>{{"a", 5, 6}}, {}, gradient), InvalidArgument);
    EXPECT_THROW(compressor->all_reduce(transport, std::vector<Segment>{{"a", 11, 0}}, {}, gradient), InvalidArgument);
    // Parts that reach beyond their parameter, which a memory would write behind its end.
    for (const Segment& part : {Segment{"a", 0, 5, 3, 7}, Segment{"a", 0, 5, 1, 0}, Segment{"a", 0, 1, SIZE_MAX, 7}}) {
      EXPECT_THROW(compressor->all_reduce(transport, std::vector<Segment>{part}, {}, gradient), InvalidArgument);
    }
    EXPECT_THROW(Compressor(nullptr, make_no_memory(), make_all_gather_exchange()), InvalidArgument);
  });
}

}  // namespace
}  // namespace gradwire::compress
