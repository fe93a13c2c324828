// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Many calls one after the other and beside each other: random sequences, several channels at once, duplicates, many
// ranks.
#include <cstdlib>
#include <iostream>
#include <thread>

#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "tests/conformance/conformance.h"

namespace gradwire::testing {
namespace {

GRADWIRE_CONFORMANCE_SUITE(Sequence, 1, 2, 3, 5, 8);
GRADWIRE_CONFORMANCE_SUITE(ManyRanks, 16, 64);

// The seed of the random sequences: another one each day is GRADWIRE_TEST_SEED=$(date +%s), and a failure prints it.
std::uint64_t test_seed() {
  const char* given = std::getenv("GRADWIRE_TEST_SEED");
  return given != nullptr ? std::strtoull(given, nullptr, 10) : 20240611U;
}

// One random collective, the same on all ranks because `random` is, checked against the oracle.
class RandomCalls {
 public:
  RandomCalls(RankContext& context, Channel& channel, std::size_t largest)
      : context_(context), channel_(channel), largest_(largest) {}

  void call(Random& random) {
    const std::size_t kind = random.below(9);
    dtype_ = kAllDTypes[random.below(11)];
    do {
      op_ = kAllOps[random.below(9)];
    } while (!is_defined(op_, dtype_));
    // Small counts as often as large ones.
    count_ = random.below((largest_ >> random.below(12)) + 2);
    root_ = static_cast<int>(random.below(ranks()));
    seed_ = random.next() % 1'000'000;
    tag_ = {static_cast<std::uint32_t>(random.below(1000)), static_cast<std::uint16_t>(random.below(50)), 0};
    SCOPED_TRACE(
        concat("call kind ", kind, " ", name_of(dtype_), " ", name_of(op_.kind), " count ", count_, " root ", root_));
    switch (kind) {
      case 0:
        channel_.barrier(with_tag(tag_));
        break;
      case 1:
        return broadcast();
      case 2:
      case 3:
        return all_reduce();
      case 4:
        return reduce();
      case 5:
        return all_gather();
      case 6:
        return gather_and_scatter();
      case 7:
        return reduce_scatter();
      default:
        return all_to_all();
    }
  }

 private:
  std::size_t ranks() const { return static_cast<std::size_t>(context_.size()); }
  std::size_t own() const { return static_cast<std::size_t>(context_.rank()); }
  bool is_root() const { return context_.rank() == root_; }
  std::vector<Bytes> inputs() const {
    std::vector<Bytes> all = make_inputs(dtype_, count_, context_.size(), seed_);
    if (dtype_ == DType::boolean) {
      for (Bytes& input : all) {
        for (std::byte& value : input) value &= std::byte{1};
      }
    }
    return all;
  }
  void expect(const Bytes& actual, const Bytes& expected) const {
    EXPECT_EQ(difference(actual.data(), expected, dtype_), "");
  }

  void broadcast() {
    std::vector<Bytes> all = inputs();
    channel_.broadcast(all[own()].data(), count_, dtype_, root_, with_tag(tag_));
    expect(all[own()], inputs()[static_cast<std::size_t>(root_)]);
  }
  void all_reduce() {
    Bytes data = inputs()[own()];
    channel_.all_reduce(data.data(), count_, dtype_, op_, with_tag(tag_));
    expect(data, combine(dtype_, op_, inputs()));
  }
  void reduce() {
    const Bytes input = inputs()[own()];
    Bytes output(input.size());
    channel_.reduce(input.data(), output.data(), count_, dtype_, op_, root_, with_tag(tag_));
    if (is_root()) expect(output, combine(dtype_, op_, inputs()));
  }
  void all_gather() {
    const std::vector<Bytes> all = inputs();
    std::vector<Bytes> received(ranks(), Bytes(all[0].size()));
    const std::vector<void*> outputs = writable(received);
    channel_.all_gather(all[own()].data(), outputs, count_, dtype_, with_tag(tag_));
    for (std::size_t r = 0; r < ranks(); ++r) expect(received[r], all[r]);
  }
  void gather_and_scatter() {
    const std::vector<Bytes> all = inputs();
    std::vector<Bytes> collected(ranks(), Bytes(all[0].size()));
    channel_.gather(all[own()].data(), is_root() ? writable(collected) : std::vector<void*>{}, count_, dtype_, root_,
                    with_tag(tag_));
    Bytes back(all[0].size());
    std::vector<const void*> parts;
    for (std::size_t r = 0; is_root() && r < ranks(); ++r) parts.push_back(collected[ranks() - 1 - r].data());
    channel_.scatter(parts, back.data(), count_, dtype_, root_, with_tag(tag_));
    expect(back, all[ranks() - 1 - own()]);
  }
  void reduce_scatter() {
    const std::vector<Bytes> all = inputs();
    const std::vector<const void*> same(ranks(), all[own()].data());
    Bytes output(all[0].size());
    channel_.reduce_scatter(same, output.data(), count_, dtype_, op_, with_tag(tag_));
    expect(output, combine(dtype_, op_, all));
  }
  void all_to_all() {
    const std::vector<Bytes> all = inputs();
    std::vector<Bytes> received(ranks(), Bytes(all[0].size()));
    std::vector<ConstSlice> sent(ranks(), ConstSlice{all[own()].data(), count_});
    std::vector<Slice> slots;
    for (Bytes& slot : received) slots.push_back({slot.data(), count_});
    channel_.all_to_all(sent, slots, dtype_, with_tag(tag_));
    for (std::size_t r = 0; r < ranks(); ++r) expect(received[r], all[r]);
  }
  static std::vector<void*> writable(std::vector<Bytes>& buffers) {
    std::vector<void*> list;
    for (Bytes& buffer : buffers) list.push_back(buffer.data());
    return list;
  }

  RankContext& context_;
  Channel& channel_;
  const std::size_t largest_;
  DType dtype_ = DType::f32;
  ReduceOp op_;
  std::size_t count_ = 0;
  int root_ = 0;
  std::uint64_t seed_ = 0;
  CallTag tag_;
};

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
