// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Collectives that move data without changing it, and the barrier.
#include <chrono>
#include <cstring>
#include <string>
#include <vector>

#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "tests/conformance/conformance.h"

namespace gradwire::testing {
namespace {

GRADWIRE_CONFORMANCE_SUITE(Movement, 1, 2, 3, 5, 8, kWideWorld);

constexpr std::size_t kCounts[] = {0, 1, 3, 64, 1000, 4097, 20001};
constexpr std::size_t kLargest = 20001 * 16;

// Calls `check(dtype, count, placement, root, seed)` for every count, with every root, dtype and placement in turn.
template <class Check>
void sweep(const RankContext& context, Check check) {
  std::uint64_t seed = 1;
  for (const std::size_t count : kCounts) {
    for (std::size_t turn = 0; turn < 11; ++turn, ++seed) {
      const DType dtype = kAllDTypes[turn];
      const Placement placement = kPlacements[seed % 4];
      const int root = static_cast<int>(seed % static_cast<std::uint64_t>(context.size()));
      SCOPED_TRACE(
          concat("count ", count, " ", name_of(dtype), " placement ", static_cast<int>(placement), " root ", root));
      check(dtype, count, placement, root, seed);
    }
  }
}

TEST_P(Movement, BroadcastGivesAllTheRootsData) {
  run([](RankContext& context) {
    Arena arena(context, kLargest);
    sweep(context, [&](DType dtype, std::size_t count, Placement placement, int root, std::uint64_t seed) {
      arena.start(placement, seed % 3);
      std::byte* const data = arena.add(make_input(dtype, count, context.rank(), seed));
      context.channel().broadcast(data, count, dtype, root, guarded());
      EXPECT_EQ(difference(data, make_input(dtype, count, root, seed), dtype), "");
      arena.expect_fences();
    });
  });
}

TEST_P(Movement, AllGatherGivesAllEveryonesData) {
  run([](RankContext& context) {
    const auto ranks = static_cast<std::size_t>(context.size());
    Arena arena(context, kLargest * (ranks + 1));
    sweep(context, [&](DType dtype, std::size_t count, Placement placement, int, std::uint64_t seed) {
      arena.start(placement, seed % 3);
      const Bytes mine = make_input(dtype, count, context.rank(), seed);
      std::vector<void*> outputs;
      for (std::size_t r = 0; r < ranks; ++r) outputs.push_back(arena.add(mine.size()));
      // Every other call passes its own output as input.
      std::byte* const own = static_cast<std::byte*>(outputs[static_cast<std::size_t>(context.rank())]);
      std::byte* const input = seed % 2 == 0 ? arena.add(mine) : own;
      if (input == own && !mine.empty()) std::memcpy(own, mine.data(), mine.size());
      context.channel().all_gather(input, outputs, count, dtype, guarded());
      for (std::size_t r = 0; r < ranks; ++r) {
        EXPECT_EQ(
            difference(static_cast<std::byte*>(outputs[r]), make_input(dtype, count, static_cast<int>(r), seed), dtype),
            "");
      }
      EXPECT_EQ(difference(input, mine, dtype), "") << "the input changed";
      arena.expect_fences();
    });
  });
}

TEST_P(Movement, GatherGivesTheRootEveryonesData) {
  run([](RankContext& context) {
    const auto ranks = static_cast<std::size_t>(context.size());
    Arena arena(context, kLargest * (ranks + 1));
    sweep(context, [&](DType dtype, std::size_t count, Placement placement, int root, std::uint64_t seed) {
      arena.start(placement, seed % 3);
      const Bytes mine = make_input(dtype, count, context.rank(), seed);
      std::byte* input = arena.add(mine);
      std::vector<void*> outputs;
      if (context.rank() == root) {
        for (std::size_t r = 0; r < ranks; ++r) {
          const bool same = seed % 2 == 0 && static_cast<int>(r) == root;
          outputs.push_back(same ? input : arena.add(mine.size()));
        }
      }
      context.channel().gather(input, outputs, count, dtype, root, guarded());
      for (std::size_t r = 0; r < outputs.size(); ++r) {
        EXPECT_EQ(
            difference(static_cast<std::byte*>(outputs[r]), make_input(dtype, count, static_cast<int>(r), seed), dtype),
            "");
      }
      EXPECT_EQ(difference(input, mine, dtype), "") << "the input changed";
      arena.expect_fences();
    });
  });
}

TEST_P(Movement, ScatterGivesEveryoneItsPartOfTheRootsData) {
  run([](RankContext& context) {
    const auto ranks = static_cast<std::size_t>(context.size());
    Arena arena(context, kLargest * (ranks + 1));
    sweep(context, [&](DType dtype, std::size_t count, Placement placement, int root, std::uint64_t seed) {
      arena.start(placement, seed % 3);
      std::vector<const void*> inputs;
      std::byte* output = nullptr;
      if (context.rank() == root) {
        for (std::size_t r = 0; r < ranks; ++r) {
          std::byte* const part = arena.add(make_input(dtype, count, static_cast<int>(r), seed));
          inputs.push_back(part);
          if (seed % 2 == 0 && static_cast<int>(r) == root) output = part;
        }
      }
      if (output == nullptr) output = arena.add(count * size_of(dtype));
      context.channel().scatter(inputs, output, count, dtype, root, guarded());
      EXPECT_EQ(difference(output, make_input(dtype, count, context.rank(), seed), dtype), "");
      for (std::size_t r = 0; r < inputs.size(); ++r) {
        const Bytes expected = make_input(dtype, count, static_cast<int>(r), seed);
        EXPECT_EQ(difference(static_cast<const std::byte*>(inputs[r]), expected, dtype), "") << "an input changed";
      }
      arena.expect_fences();
    });
  });
}

// How many elements rank `from` sends to rank `to`: uneven, some none, in both directions different.
std::size_t uneven(int from, int to, std::size_t count, std::uint64_t seed) {
  Random random(seed * 4096 + static_cast<std::uint64_t>(from * 64 + to));
  return random.below(4) == 0 ? 0 : random.below(count + 1);
}

TEST_P(Movement, AllToAllGivesEveryoneWhatIsMeantForIt) {
  run([](RankContext& context) {
    const int ranks = context.size();
    Arena arena(context, kLargest * 2 * static_cast<std::size_t>(ranks));
    sweep(context, [&](DType dtype, std::size_t count, Placement placement, int, std::uint64_t seed) {
      arena.start(placement, seed % 3);
      const auto content = [&](int from, int to) {
        const std::size_t length = seed % 2 == 0 ? count : uneven(from, to, count, seed);
        return make_input(dtype, length, from * 64 + to, seed);
      };
      std::vector<ConstSlice> inputs;
      std::vector<Slice> outputs;
      for (int r = 0; r < ranks; ++r) {
        const Bytes sent = content(context.rank(), r);
        const Bytes received = content(r, context.rank());
        inputs.push_back({sent.empty() ? nullptr : arena.add(sent), sent.size() / size_of(dtype)});
        outputs.push_back({received.empty() ? nullptr : arena.add(received.size()), received.size() / size_of(dtype)});
      }
      context.channel().all_to_all(inputs, outputs, dtype, guarded());
      for (int r = 0; r < ranks; ++r) {
        const auto* const data = static_cast<const std::byte*>(outputs[static_cast<std::size_t>(r)].data);
        EXPECT_EQ(difference(data, content(r, context.rank()), dtype), "") << "from rank " << r;
      }
      arena.expect_fences();
    });
  });
}

// A rank that offers is at the end of its buffer, in the middle or nowhere yet when another begins to take.
TEST_P(Movement, LongBuffersGoInPiecesWhoeverIsLate) {
  run([](RankContext& context) {
    const auto ranks = static_cast<std::size_t>(context.size());
    constexpr std::size_t kKiB = 256;  // elements of f32
    const std::size_t longest = (ranks > 5 ? 100 : 1501) * kKiB;
    constexpr std::size_t kElements[] = {16 * kKiB, 16 * kKiB + 1,  40 * kKiB,  64 * kKiB,   64 * kKiB + 5,
                                         90 * kKiB, 256 * kKiB + 3, 330 * kKiB, 1000 * kKiB, 1500 * kKiB + 7};
    Arena arena(context, (ranks + 1) * longest * 4);
    std::uint64_t seed = 1;
    for (const std::size_t count : kElements) {
      if (count > longest) break;
      for (int turn = 0; turn < (kThreadSanitizer ? 3 : 9); ++turn, ++seed) {
        const int root = static_cast<int>(seed % ranks);
        // Mostly in private memory.
        arena.start(turn < 6 ? Placement::own : kPlacements[seed % 4], seed % 3);
        const auto of_rank = [&](std::size_t r) { return make_input(DType::f32, count, static_cast<int>(r), seed); };
        const bool is_root = context.rank() == root;
        const Bytes mine = of_rank(static_cast<std::size_t>(context.rank()));
        std::byte* const own = arena.add(mine);
        std::vector<std::byte*> all;
        for (std::size_t r = 0; is_root && r < ranks; ++r) all.push_back(arena.add(turn % 3 == 1 ? of_rank(r) : mine));
        Random random(seed * 64 + static_cast<std::uint64_t>(context.rank()));
        const auto begin = std::chrono::steady_clock::now();
        const auto late = std::chrono::microseconds(random.below(3) == 0 ? random.below(150) : 0);
        while (std::chrono::steady_clock::now() - begin < late) {
        }
        // Takes windows of its own, and says nothing of them.
        if (turn % 2 == 1) {
          std::vector<float> ones(100'000, 1);
          context.channel().all_reduce(ones.data(), ones.size(), DType::f32, ReduceOp::sum(), guarded());
          EXPECT_EQ(ones.back(), static_cast<float>(ranks));
        }
        SCOPED_TRACE(concat("count ", count, " turn ", turn, " root ", root));
        if (turn % 3 == 0) {
          context.channel().broadcast(own, count, DType::f32, root, guarded());
          EXPECT_EQ(difference(own, of_rank(static_cast<std::size_t>(root)), DType::f32), "");
        } else if (turn % 3 == 1) {
          const std::vector<const void*> inputs(all.begin(), all.end());
          std::memset(own, 0, mine.size());
          context.channel().scatter(inputs, own, count, DType::f32, root, guarded());
          EXPECT_EQ(difference(own, mine, DType::f32), "");
        } else {
          const std::vector<void*> outputs(all.begin(), all.end());
          context.channel().gather(own, outputs, count, DType::f32, root, guarded());
          for (std::size_t r = 0; r < all.size(); ++r) EXPECT_EQ(difference(all[r], of_rank(r), DType::f32), "");
        }
        arena.expect_fences();
      }
    }
  });
}

TEST_P(Movement, NobodyLeavesABarrierBeforeAllHaveEntered) {
  run([](RankContext& context) {
    for (int round = 0; round < 20; ++round) {
      const std::string key = concat("entered", round);
      context.store().add(key, 1);
      context.channel().barrier(guarded());
      EXPECT_EQ(context.store().add(key, 0), context.size()) << "round " << round;
    }
  });
}

TEST_P(Movement, BadArgumentsAreRefusedBeforeAnythingMoves) {
  run([](RankContext& context) {
    Channel& channel = context.channel();
    const auto ranks = static_cast<std::size_t>(context.size());
    std::vector<float> memory(ranks + 2);
    std::vector<void*> outputs;
    std::vector<const void*> inputs;
    for (std::size_t r = 0; r < ranks; ++r) {
      outputs.push_back(&memory[r]);
      inputs.push_back(&memory[r]);
    }
    float* const extra = &memory[ranks];
    const std::size_t huge = static_cast<std::size_t>(-1) / 2;
    const auto refused = [](auto call) { expect_throw<InvalidArgument>(call); };
    for (const int root : {-1, context.size(), 1 << 30}) {
      refused([&] { channel.broadcast(extra, 1, DType::f32, root, guarded()); });
      refused([&] { channel.reduce(extra, extra, 1, DType::f32, ReduceOp::sum(), root, guarded()); });
      refused([&] { channel.gather(extra, outputs, 1, DType::f32, root, guarded()); });
      refused([&] { channel.scatter(inputs, extra, 1, DType::f32, root, guarded()); });
    }
    refused([&] { channel.broadcast(nullptr, 1, DType::f32, 0, guarded()); });
    refused([&] { channel.all_reduce(nullptr, 1, DType::f32, ReduceOp::sum(), guarded()); });
    refused([&] { channel.all_reduce(extra, huge, DType::f32, ReduceOp::sum(), guarded()); });
    refused([&] { channel.all_reduce(extra, 1, static_cast<DType>(99), ReduceOp::sum(), guarded()); });
    refused([&] { channel.all_reduce(extra, 1, DType::f32, {static_cast<ReduceOp::Kind>(99)}, guarded()); });
    std::vector<void*> longer = outputs;
    longer.push_back(extra + 1);
    refused([&] { channel.all_gather(extra, longer, 1, DType::f32, guarded()); });
    refused([&] { channel.all_gather(extra, {}, 1, DType::f32, guarded()); });
    refused([&] { channel.all_to_all({}, {}, DType::f32, guarded()); });
    refused([&] { channel.reduce_scatter({}, extra, 1, DType::f32, ReduceOp::sum(), guarded()); });
    refused([&] { channel.isend(extra, 4, context.size(), 0); });
    refused([&] { channel.irecv(extra, 4, -2, 0); });
    refused([&] { channel.irecv(nullptr, 4, 0, 0); });
    // The channel goes on.
    *extra = 1;
    channel.all_reduce(extra, 1, DType::f32, ReduceOp::sum(), guarded());
    EXPECT_EQ(*extra, static_cast<float>(context.size()));
  });
}

}  // namespace
}  // namespace gradwire::testing
