// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Many successive and concurrent calls: random sequences, several channels at once, duplicates, many ranks.
#include <cstdlib>
#include <iostream>
#include <thread>

#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "tests/conformance/conformance.h"
#include "tests/conformance/random_calls.h"

namespace gradwire::testing {
namespace {

GRADWIRE_CONFORMANCE_SUITE(Sequence, 1, 2, 3, 5, 8, kWideWorld);
GRADWIRE_CONFORMANCE_SUITE(ManyRanks, 16, 64);

// The seed of the random sequences: another one each day is GRADWIRE_TEST_SEED=$(date +%s), and a failure prints it.
std::uint64_t test_seed() {
  const char* given = std::getenv("GRADWIRE_TEST_SEED");
  return given != nullptr ? std::strtoull(given, nullptr, 10) : 20240611U;
}

TEST_P(Sequence, RandomCollectivesGiveWhatTheOracleSays) {
  const std::uint64_t seed = test_seed();
  SCOPED_TRACE(concat("GRADWIRE_TEST_SEED=", seed));
  run([&](RankContext& context) {
    SCOPED_TRACE(concat("GRADWIRE_TEST_SEED=", seed));
    Random random(seed + static_cast<std::uint64_t>(context.size()));
    RandomCalls calls(context, context.channel(), 30'000);
    for (int i = 0; i < 60 && !::testing::Test::HasFailure(); ++i) calls.call(random);
  });
}

TEST_P(Sequence, ChannelsAreIndependentAndMayRunAtOnce) {
  run([](RankContext& context) {
    constexpr int kChannels = 3;
    std::vector<std::unique_ptr<Channel>> channels;
    for (int i = 0; i < kChannels; ++i) channels.push_back(context.channel().duplicate(guarded()));
    std::vector<std::thread> threads;
    for (int i = 0; i < kChannels; ++i) {
      threads.emplace_back([&, i] {
        SCOPED_TRACE(concat("rank ", context.rank(), " channel ", i));
        Random random(static_cast<std::uint64_t>(100 + i));
        RandomCalls calls(context, *channels[static_cast<std::size_t>(i)], 5'000);
        for (int n = 0; n < 25; ++n) calls.call(random);
      });
    }
    Random random(99);
    RandomCalls calls(context, context.channel(), 5'000);
    for (int n = 0; n < 25; ++n) calls.call(random);
    for (std::thread& thread : threads) thread.join();
  });
}

TEST_P(Sequence, ChannelsMayBeUsedInADifferentOrderByEachRank) {
  run([](RankContext& context) {
    // Odd ranks reduce on the second channel first: an order between channels would lock up.
    const std::unique_ptr<Channel> a = context.channel().duplicate(guarded());
    const std::unique_ptr<Channel> b = context.channel().duplicate(guarded());
    float on_a = 1, on_b = 2;
    const auto sum = [&](Channel& channel, float& value) {
      channel.all_reduce(&value, 1, DType::f32, ReduceOp::sum(), guarded());
    };
    std::thread other([&] { context.rank() % 2 == 0 ? sum(*b, on_b) : sum(*a, on_a); });
    context.rank() % 2 == 0 ? sum(*a, on_a) : sum(*b, on_b);
    other.join();
    EXPECT_EQ(on_a, static_cast<float>(context.size()));
    EXPECT_EQ(on_b, static_cast<float>(2 * context.size()));
  });
}

TEST_P(Sequence, DuplicatesOfDuplicatesComeAndGo) {
  run([](RankContext& context) {
    std::unique_ptr<Channel> current = context.channel().duplicate(guarded());
    for (int depth = 0; depth < 20; ++depth) {
      std::unique_ptr<Channel> next = current->duplicate(guarded());
      EXPECT_EQ(next->rank(), context.rank());
      EXPECT_EQ(next->size(), context.size());
      std::int64_t value = depth;
      next->all_reduce(&value, 1, DType::i64, ReduceOp::sum(), guarded());
      EXPECT_EQ(value, depth * context.size());
      current = std::move(next);
    }
  });
}

TEST_P(Sequence, TenThousandSmallCallsInARow) {
  run([](RankContext& context) {
    const int rounds = context.size() <= 3 ? 10'000 : 1'000;
    for (int i = 0; i < rounds; ++i) {
      std::int64_t value = i + context.rank();
      context.channel().all_reduce(&value, 1, DType::i64, ReduceOp::max(), guarded());
      ASSERT_EQ(value, i + context.size() - 1);
    }
  });
}

TEST_P(ManyRanks, EveryCollectiveOnce) {
  run([](RankContext& context) {
    Random random(7);
    RandomCalls calls(context, context.channel(), 300);
    for (int i = 0; i < 12; ++i) calls.call(random);
    const std::unique_ptr<Channel> duplicate = context.channel().duplicate(guarded());
    RandomCalls more(context, *duplicate, 3'000);
    for (int i = 0; i < 3; ++i) more.call(random);
  });
}

}  // namespace
}  // namespace gradwire::testing
