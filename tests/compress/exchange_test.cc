// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// What exchange.h promises, for every codec with every exchange, over real backends.
#include "gradwire/compress/exchange.h"

#include <gtest/gtest.h>

#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "tests/compress/ranks.h"

namespace gradwire::compress {
namespace {

using testing::all_codecs;
using testing::all_finite;
using testing::collect;
using testing::CountingTransport;
using testing::Floats;
using testing::gradient_like;
using testing::Kind;
using testing::RankContext;
using testing::same_bits;
using testing::SpanEnds;
using testing::transport_of;
using testing::World;

// Around the edges of chunks and blocks.
const std::vector<std::size_t> kCounts =
    testing::counts_of({0, 1, 2, 15, 16, 17, 63, 64, 65, 100, 257, 1000, 4097}, {0, 1, 17, 1000});

struct Outcome {
  Floats mean;
  Floats delivered;
  std::size_t sent = 0;
};

Outcome exchange_once(const Exchange& exchange, Transport& transport, const Codec& codec, const Floats& values,
                      std::uint64_t step = 0, double divisor = 0) {
  Outcome outcome{Floats(values.size(), 77), Floats(values.size(), 77), 0};
  Workspace workspace;
  SpanEnds ends(values, outcome.mean, outcome.delivered);
  outcome.sent = exchange.run(transport, codec, {{5, 3, step, 0}, divisor, ends}, workspace);
  return outcome;
}

// divisor * mean = the sum of what all ranks delivered, in float64, up to the rounding of float32.
void expect_conserved(Transport& transport, const Floats& values, const Outcome& outcome, double divisor) {
  const auto all_delivered = collect(transport, outcome.delivered);
  const auto all_values = collect(transport, values);
  for (std::size_t i = 0; i < values.size(); ++i) {
    double sum = 0;
    double scale = std::fabs(divisor * double{outcome.mean[i]});
    for (std::size_t r = 0; r < all_delivered.size(); ++r) {
      sum += double{all_delivered[r][i]};
      scale += std::fabs(double{all_delivered[r][i]}) + std::fabs(double{all_values[r][i]});
    }
    ASSERT_NEAR(divisor * double{outcome.mean[i]}, sum, 2e-6 * scale) << "value " << i << " of " << values.size();
  }
}

void for_all(const std::function<void(const Exchange&, const Codec&)>& body) {
  for (const std::string& exchange_name : known_exchanges()) {
    for (const std::string& codec_name : all_codecs()) {
      SCOPED_TRACE(concat(codec_name, " through ", exchange_name));
      body(*make_exchange(exchange_name), *make_codec(codec_name));
      if (::testing::Test::HasFatalFailure()) return;
    }
  }
}

class ExchangeTest : public ::testing::TestWithParam<World> {
 protected:
  static void run(const std::function<void(RankContext&)>& body) { run_world(GetParam(), body); }
};

INSTANTIATE_TEST_SUITE_P(Worlds, ExchangeTest,
                         ::testing::Values(World{Kind::threads, 1}, World{Kind::threads, 2}, World{Kind::threads, 3},
                                           World{Kind::threads, 4}, World{Kind::threads, 5}, World{Kind::threads, 8},
                                           World{Kind::loopback, 3}, World{Kind::shm, 3}),
                         [](const auto& instance) { return name_of(instance.param); });

TEST_P(ExchangeTest, TheMeanIsWhatAllRanksDeliveredWithTheSameBitsOnAllAndEveryTime) {
  run([](RankContext& context) {
    auto transport = transport_of(context);
    for_all([&](const Exchange& exchange, const Codec& codec) {
      for (const std::size_t count : kCounts) {
        const Floats values = gradient_like(count, static_cast<std::uint64_t>(context.rank()) + 10 * count);
        const double divisor = count % 2 == 0 ? transport.size() : 3;
        const Outcome outcome = exchange_once(exchange, transport, codec, values, count % 5, divisor);
        expect_conserved(transport, values, outcome, divisor);
        for (const Floats& mean : collect(transport, outcome.mean)) ASSERT_TRUE(same_bits(mean, outcome.mean)) << count;
        const Outcome again = exchange_once(exchange, transport, codec, values, count % 5, divisor);
        ASSERT_TRUE(same_bits(again.mean, outcome.mean));
        ASSERT_TRUE(same_bits(again.delivered, outcome.delivered));
      }
    });
  });
}

TEST_P(ExchangeTest, TheMeanMayLieWhereTheValuesDo) {
  run([](RankContext& context) {
    auto transport = transport_of(context);
    for_all([&](const Exchange& exchange, const Codec& codec) {
      const Floats values = gradient_like(1000, static_cast<std::uint64_t>(context.rank()));
      const Outcome expected = exchange_once(exchange, transport, codec, values);
      Floats both = values;
      Workspace workspace;
      SpanEnds ends(both, both, {});
      exchange.run(transport, codec, {{5, 3, 0, 0}, 0, ends}, workspace);
      ASSERT_TRUE(same_bits(both, expected.mean));
    });
  });
}

TEST_P(ExchangeTest, SendsTheBytesOfTheFormula) {
  run([](RankContext& context) {
    auto below = transport_of(context);
    for_all([&](const Exchange& exchange, const Codec& codec) {
      for (const std::size_t count : kCounts) {
        CountingTransport transport(below);
        const Floats values = gradient_like(count, static_cast<std::uint64_t>(context.rank()));
        const Outcome outcome = exchange_once(exchange, transport, codec, values, 2);
        ASSERT_EQ(outcome.sent, transport.sent()) << count;
        const std::size_t formula = exchange.bytes_sent(codec, count, transport.size(), 2);
        if (codec.is_fixed_size()) {
          ASSERT_EQ(outcome.sent, formula) << count;
        } else {
          ASSERT_LE(outcome.sent, formula) << count;
        }
      }
    });
  });
}

TEST_P(ExchangeTest, AnInfinityOrNaNOnAnyRankReachesAll) {
  run([](RankContext& context) {
    auto transport = transport_of(context);
    for_all([&](const Exchange& exchange, const Codec& codec) {
      for (const float poison : {testing::kInfinity, -testing::kInfinity, testing::kNan}) {
        for (const std::size_t at : {std::size_t{0}, std::size_t{123}, std::size_t{299}}) {
          Floats values = gradient_like(300, static_cast<std::uint64_t>(context.rank()));
          if (context.rank() == static_cast<int>(at) % context.size()) values[at] = poison;
          const Outcome outcome = exchange_once(exchange, transport, codec, values);
          ASSERT_FALSE(all_finite(outcome.mean)) << poison << " at " << at;
        }
      }
    });
  });
}

// The codec that loses nothing: the mean is the mean, and everything is delivered.
TEST_P(ExchangeTest, WhatIsNotLostIsTheMean) {
  run([](RankContext& context) {
    auto transport = transport_of(context);
    for (const std::string& name : known_exchanges()) {
      const auto codec = make_codec("top_k:ratio=1");
      for (const std::size_t count : kCounts) {
        const Floats values = gradient_like(count, static_cast<std::uint64_t>(context.rank()));
        const Outcome outcome = exchange_once(*make_exchange(name), transport, *codec, values);
        const auto all = collect(transport, values);
        for (std::size_t i = 0; i < count; ++i) {
          float sum = all[0][i];
          for (std::size_t r = 1; r < all.size(); ++r) sum += all[r][i];
          ASSERT_EQ(outcome.mean[i], sum / static_cast<float>(all.size()));
          ASSERT_NEAR(outcome.delivered[i], values[i], 1e-5) << name;
        }
      }
    }
  });
}

TEST_P(ExchangeTest, SignsThroughAllReduceAreTheMajorityVote) {
  run([](RankContext& context) {
    auto transport = transport_of(context);
    Floats values = gradient_like(500, static_cast<std::uint64_t>(context.rank()));
    for (std::size_t i = 0; i < values.size(); i += 3) values[i] *= 1e-6f;  // a small vote counts as much
    const Outcome outcome = exchange_once(*make_all_reduce_exchange(), transport, *make_codec("sign"), values);
    const auto all = collect(transport, values);
    for (std::size_t i = 0; i < values.size(); ++i) {
      int votes = 0;
      for (const Floats& voter : all) votes += voter[i] >= 0 ? 1 : -1;
      ASSERT_EQ(outcome.mean[i], votes >= 0 ? 1.0f : -1.0f) << i;
    }
  });
}

// The mean of many draws is the mean of the values, within five standard deviations.
TEST_P(ExchangeTest, UnbiasedRandomKIsUnbiasedThroughBoth) {
  run([](RankContext& context) {
    auto transport = transport_of(context);
    const auto codec = make_codec("random_k:ratio=0.5,unbiased=1");
    const std::size_t count = 64;
    const int draws = testing::kThreadSanitizer ? 100 : 1000;
    for (const std::string& name : known_exchanges()) {
      const Floats values(count, static_cast<float>(context.rank() + 1));
      std::vector<double> sums(count);
      for (int step = 0; step < draws; ++step) {
        const Outcome outcome =
            exchange_once(*make_exchange(name), transport, *codec, values, static_cast<std::uint64_t>(step));
        for (std::size_t i = 0; i < count; ++i) sums[i] += double{outcome.mean[i]};
      }
      const double mean = (transport.size() + 1) / 2.0;
      // A draw is 2 mean or 0, with equal chances: its standard deviation is the mean.
      for (const double sum : sums) ASSERT_NEAR(sum / draws, mean, 5 * mean / std::sqrt(double{draws})) << name;
    }
  });
}

TEST_P(ExchangeTest, RanksThatRoundAtRandomRoundIndependently) {
  run([](RankContext& context) {
    auto transport = transport_of(context);
    const Floats values(4096, 0.5f);
    Floats scaled = values;
    scaled[0] = 1;  // the scale of its block of one level: 0.5 is rounded up or down with equal chances
    const Outcome outcome = exchange_once(*make_all_gather_exchange(), transport,
                                          *make_codec("int2:block=4096,rounding=stochastic"), scaled);
    const auto all = collect(transport, outcome.delivered);
    for (std::size_t r = 1; r < all.size(); ++r) {
      int equal = 0;
      for (std::size_t i = 0; i < values.size(); ++i) equal += all[r][i] == all[0][i] ? 1 : 0;
      EXPECT_NEAR(equal, 2048, 5 * 32);
    }
  });
}

TEST(ExchangeBytes, OfTheCompressedAllReduceDoNotGrowWithTheWorld) {
  const auto exchange = make_all_reduce_exchange();
  for (const std::string& name : all_codecs()) {
    const auto codec = make_codec(name);
    const auto two = static_cast<double>(exchange->bytes_sent(*codec, 1'000'000, 2));
    const auto four = static_cast<double>(exchange->bytes_sent(*codec, 1'000'000, 4));
    const auto eight = static_cast<double>(exchange->bytes_sent(*codec, 1'000'000, 8));
    EXPECT_LE(four, 1.1 * 1.5 * two) << name;
    EXPECT_LE(eight, 1.1 * 1.75 * two) << name;
    EXPECT_GT(two, 0);
  }
}

TEST(ExchangeBytes, AreThoseOfTheDocumentation) {
  const auto codec = make_codec("int8:block=256");
  // 1000 values on 4 ranks: chunks of 256, with one scale each.
  EXPECT_EQ(make_all_reduce_exchange()->bytes_sent(*codec, 1000, 4), 2u * 3u * (256u + 4u));
  EXPECT_EQ(make_all_gather_exchange()->bytes_sent(*codec, 1000, 4), 3u * (1000u + 16u));
  const auto threshold = make_codec("threshold");
  EXPECT_EQ(make_all_reduce_exchange()->bytes_sent(*threshold, 1000, 4), 3u * (8u + 8u + 2048u + 8u + 2048u));
  EXPECT_EQ(make_all_gather_exchange()->bytes_sent(*threshold, 1000, 4), 3u * (8u + 8000u));
}

TEST(Chunks, CoverAllValuesInOrderAndAreNearlyEqual) {
  for (std::size_t count = 0; count < 700; ++count) {
    for (const int world : {1, 2, 3, 4, 5, 8, 64}) {
      EXPECT_EQ(chunk_begin(count, world, 0), 0u);
      EXPECT_EQ(chunk_begin(count, world, world), count);
      for (int r = 0; r < world; ++r) {
        const std::size_t length = chunk_begin(count, world, r + 1) - chunk_begin(count, world, r);
        EXPECT_LE(length, count / static_cast<std::size_t>(world) + kChunkMultiple);
        EXPECT_TRUE(chunk_begin(count, world, r) % kChunkMultiple == 0 || chunk_begin(count, world, r) == count);
      }
    }
  }
}

TEST(MakeExchange, ListsTheNamesOnAWrongOne) {
  for (const std::string& name : known_exchanges()) EXPECT_EQ(make_exchange(name)->name(), name);
  try {
    make_exchange("ring");
    FAIL();
  } catch (const InvalidArgument& error) {
    EXPECT_NE(std::string(error.what()).find("all_gather, all_reduce"), std::string::npos);
  }
}

// Peers that send whatever comes into their minds.
class GarbageTransport final : public Transport {
 public:
  explicit GarbageTransport(std::uint32_t seed) : random_(seed) {}
  int rank() const noexcept override { return 1; }
  int size() const noexcept override { return 3; }
  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all) override {
    fill(all);
    std::copy(mine.begin(), mine.end(), all.begin() + static_cast<std::ptrdiff_t>(mine.size()));
  }
  void all_to_all(std::span<const std::byte>, std::span<std::byte> from_each) override { fill(from_each); }

 private:
  void fill(std::span<std::byte> bytes) {
    const bool mostly_zeros = random_() % 2 == 0;
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(mostly_zeros && random_() % 4 != 0 ? 0 : random_());
  }
  std::mt19937 random_;
};

TEST(ExchangeGarbage, IsRefusedOrDecodedAndDoesNoHarm) {
  int refused = 0;
  for_all([&](const Exchange& exchange, const Codec& codec) {
    for (std::uint32_t seed = 0; seed < 50; ++seed) {
      GarbageTransport transport(seed);
      try {
        exchange_once(exchange, transport, codec, gradient_like(20 + 13 * seed, seed));
      } catch (const MismatchError&) {
        ++refused;
      }
    }
  });
  EXPECT_GT(refused, 100);
}

// Says 8 bits for each value, and writes something else.
class LyingCodec final : public Codec {
 public:
  LyingCodec(bool is_fixed, std::size_t size) : is_fixed_(is_fixed), size_(size) {}
  std::string name() const override { return "lying"; }
  std::size_t max_encoded_size(std::size_t count) const noexcept override { return count; }
  bool is_fixed_size() const noexcept override { return is_fixed_; }
  std::size_t encode(std::span<const float>, const EncodeKey&, std::span<std::byte>) const override { return size_; }
  void decode(std::span<const std::byte>, const EncodeKey&, std::span<float> values) const override {
    std::fill(values.begin(), values.end(), 0.0F);
  }

 private:
  const bool is_fixed_;
  const std::size_t size_;
};

TEST(ExchangeArguments, ACodecThatWritesAnotherSizeThanItSaysIsRefused) {
  testing::run_world(World{Kind::threads, 2}, [](RankContext& context) {
    auto transport = transport_of(context);
    const Floats values(64, 1.0F);
    for (const std::string& exchange : known_exchanges()) {
      const std::size_t part = exchange == "all_reduce" ? 32 : 64;
      for (const auto& [is_fixed, size] :
           {std::pair(true, part - 1), std::pair(true, part + 1), std::pair(false, part + 1)}) {
        EXPECT_THROW(exchange_once(*make_exchange(exchange), transport, LyingCodec(is_fixed, size), values),
                     InvalidArgument)
            << exchange << ", " << is_fixed << ", " << size;
      }
    }
  });
}

TEST(ExchangeArguments, AreCheckedBeforeAnythingIsSent) {
  GarbageTransport transport(1);
  const auto codec = make_codec("fp16");
  Floats ten(10);
  Workspace workspace;
  for (const std::string& name : known_exchanges()) {
    SpanEnds ends(ten, ten, {});
    EXPECT_THROW(make_exchange(name)->run(transport, *codec, {{}, -1, ends}, workspace), InvalidArgument);
    EXPECT_THROW(make_exchange(name)->run(transport, *codec, {{}, testing::kNan, ends}, workspace), InvalidArgument);
  }
}

}  // namespace
}  // namespace gradwire::compress
