// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Reductions against an oracle that combines in rank order: bit for bit, on every path.
#include <array>
#include <cmath>

#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "tests/conformance/conformance.h"

namespace gradwire::testing {
namespace {

GRADWIRE_CONFORMANCE_SUITE(Reductions, 1, 2, 3, 5, 8, kWideWorld);

std::string name(DType dtype, ReduceOp op, std::size_t count, Placement placement) {
  return concat(name_of(dtype), " ", name_of(op.kind), " count ", count, " placement ", static_cast<int>(placement));
}

// A byte that is neither 0 nor 1 counts as true; what a reduction over one rank leaves of it is not said.
std::vector<Bytes> inputs_for(const RankContext& context, DType dtype, std::size_t count, std::uint64_t seed) {
  std::vector<Bytes> inputs = make_inputs(dtype, count, context.size(), seed);
  if (dtype == DType::boolean && context.size() == 1) {
    for (std::byte& value : inputs[0]) value = std::byte{value != std::byte{0}};
  }
  return inputs;
}

void check_all_reduce(RankContext& context, Arena& arena, DType dtype, ReduceOp op, std::size_t count,
                      Placement placement, std::size_t misaligned, std::uint64_t seed) {
  SCOPED_TRACE(concat("all_reduce ", name(dtype, op, count, placement)));
  const std::vector<Bytes> inputs = inputs_for(context, dtype, count, seed);
  arena.start(placement, misaligned);
  std::byte* const data = arena.add(inputs[static_cast<std::size_t>(context.rank())]);
  context.channel().all_reduce(data, count, dtype, op, guarded());
  EXPECT_EQ(difference(data, combine(dtype, op, inputs), dtype), "");
  arena.expect_fences();
}

void check_reduce(RankContext& context, Arena& arena, DType dtype, ReduceOp op, std::size_t count, Placement placement,
                  int root, bool same_buffer, std::uint64_t seed) {
  SCOPED_TRACE(concat("reduce ", name(dtype, op, count, placement), " root ", root));
  const std::vector<Bytes> inputs = inputs_for(context, dtype, count, seed);
  const Bytes& mine = inputs[static_cast<std::size_t>(context.rank())];
  arena.start(placement);
  std::byte* const input = arena.add(mine);
  std::byte* const output = same_buffer ? input : arena.add(mine.size());
  const Bytes before = bytes_of(output, mine.size());
  const bool is_root = context.rank() == root;
  // Elsewhere the output may be null, and is not touched if it is not.
  std::byte* const passed = is_root || seed % 2 == 0 ? output : nullptr;
  context.channel().reduce(input, passed, count, dtype, op, root, guarded());
  EXPECT_EQ(difference(output, is_root ? combine(dtype, op, inputs) : before, dtype), "");
  if (!is_root || !same_buffer) {
    EXPECT_EQ(difference(input, mine, dtype), "") << "the input changed";
  }
  arena.expect_fences();
}

void check_reduce_scatter(RankContext& context, Arena& arena, DType dtype, ReduceOp op, std::size_t count,
                          Placement placement, bool same_buffer, std::uint64_t seed) {
  SCOPED_TRACE(concat("reduce_scatter ", name(dtype, op, count, placement)));
  const auto own = static_cast<std::size_t>(context.rank());
  arena.start(placement);
  std::vector<const void*> pointers;
  const std::vector<Bytes> to_me = inputs_for(context, dtype, count, seed * 64 + own);  // from each rank
  std::vector<Bytes> mine;                                                              // for each rank
  for (std::uint64_t to = 0; to < static_cast<std::uint64_t>(context.size()); ++to) {
    mine.push_back(to == own ? to_me[own] : make_input(dtype, count, context.rank(), seed * 64 + to));
    pointers.push_back(arena.add(mine.back()));
  }
  std::byte* const output =
      same_buffer ? static_cast<std::byte*>(const_cast<void*>(pointers[own])) : arena.add(mine[own].size());
  context.channel().reduce_scatter(pointers, output, count, dtype, op, guarded());
  EXPECT_EQ(difference(output, combine(dtype, op, to_me), dtype), "");
  for (std::size_t to = 0; to < mine.size(); ++to) {
    if (to == own && same_buffer) continue;
    EXPECT_EQ(difference(static_cast<const std::byte*>(pointers[to]), mine[to], dtype), "") << "an input changed";
  }
  arena.expect_fences();
}

TEST_P(Reductions, EveryDefinedPairGivesTheBitsOfTheRankOrder) {
  static const std::vector<std::size_t> counts = counts_of({0, 1, 5, 129, 2051}, {0, 1, 2051});
  run([](RankContext& context) {
    Arena arena(context, 64 * 1024 * 10);
    std::uint64_t seed = 1;
    for (const DType dtype : kAllDTypes) {
      for (const ReduceOp op : kAllOps) {
        if (!is_defined(op, dtype)) continue;
        for (const std::size_t count : counts) {
          const Placement placement = kPlacements[seed % 4];
          const int root = static_cast<int>(seed % static_cast<std::uint64_t>(context.size()));
          check_all_reduce(context, arena, dtype, op, count, placement, 0, seed);
          check_reduce(context, arena, dtype, op, count, placement, root, seed % 3 == 0, seed);
          check_reduce_scatter(context, arena, dtype, op, count, placement, seed % 3 == 1, seed);
          ++seed;
        }
      }
    }
  });
}

TEST_P(Reductions, CountsAroundPowersOfTwoOnEveryPath) {
  run([](RankContext& context) {
    Arena arena(context, (std::size_t{1} << 16) * 4 + 64);
    std::uint64_t seed = 1;
    for (std::size_t power = 2; power <= std::size_t{1} << 16; power *= kThreadSanitizer ? 8 : 2) {
      for (const std::size_t count : {power - 1, power, power + 1}) {
        const Placement placement = kPlacements[seed % 4];
        check_all_reduce(context, arena, DType::f32, ReduceOp::sum(), count, placement, 0, seed++);
        check_all_reduce(context, arena, DType::bf16, ReduceOp::avg(), count, kPlacements[seed % 4], 0, seed);
        check_all_reduce(context, arena, DType::u8, ReduceOp::max(), count, placement, 0, seed);
      }
    }
  });
}

// Backends cut long buffers, and have one piece under way while they combine another.
TEST_P(Reductions, LongBuffersInSeveralPieces) {
  run([](RankContext& context) {
    if (context.size() > 3) return;
    const std::size_t part = (std::size_t{1} << 20) + 12'345;  // that a rank combines
    const std::size_t whole = part * static_cast<std::size_t>(context.size()) - 1;
    Arena arena(context, 2 * whole + (part + 64) * static_cast<std::size_t>(context.size() + 1));
    std::uint64_t seed = 1;
    for (const Placement placement : {Placement::in_place, Placement::own}) {
      for (const bool same_buffer : {false, true}) {
        // Under the thread sanitizer each path once: all four take a minute.
        if (kThreadSanitizer && same_buffer != (placement == Placement::own)) continue;
        check_all_reduce(context, arena, DType::u8, ReduceOp::sum(), whole, placement, 0, ++seed);
        const int root = static_cast<int>(seed) % context.size();
        check_reduce(context, arena, DType::u8, ReduceOp::sum(), whole, placement, root, same_buffer, seed);
        check_reduce_scatter(context, arena, DType::u8, ReduceOp::sum(), part, placement, same_buffer, seed);
      }
    }
  });
}

// A rank reduces what the others have offered so far.
TEST_P(Reductions, PiecesOfAReduceAreReducedAsTheyCome) {
  run([](RankContext& context) {
    const std::size_t longest = context.size() > 5 ? 20'000 : 300'001;
    Arena arena(context, 16 * (2 * longest + 64));
    std::uint64_t seed = 1;
    for (const std::size_t count : {4096UL, 4097UL, 16'384UL, 16'390UL, 70'000UL, 300'001UL}) {
      if (count > longest) break;
      for (int turn = 0; turn < 6; ++turn, ++seed) {
        const int root = static_cast<int>(seed % static_cast<std::uint64_t>(context.size()));
        const Placement placement = turn < 4 ? Placement::own : kPlacements[seed % 4];
        const DType dtype = turn == 3 ? DType::c128 : DType::f32;
        check_reduce(context, arena, dtype, ReduceOp::sum(), count, placement, root, turn % 2 == 0, seed);
      }
    }
  });
}

TEST_P(Reductions, AnyAlignmentWillDo) {
  run([](RankContext& context) {
    Arena arena(context, 64 * 1024);
    for (const DType dtype : {DType::f16, DType::f32, DType::i64, DType::c128}) {
      for (const std::size_t misaligned : {1, 2, 3, 4, 7, 8, 31, 63}) {
        // Ranks need not be misaligned alike.
        const std::size_t mine = misaligned * static_cast<std::size_t>(context.rank() + 1) % 64;
        for (const Placement placement : kPlacements) {
          check_all_reduce(context, arena, dtype, ReduceOp::sum(), 1027, placement, mine, misaligned);
        }
      }
    }
  });
}

TEST_P(Reductions, EveryPathAndEveryRunGiveTheSameBits) {
  run([](RankContext& context) {
    constexpr std::size_t kCount = 40961;
    for (const DType dtype : {DType::f16, DType::f32}) {
      Arena arena(context, kCount * 4);
      const Bytes input = make_input(dtype, kCount, context.rank(), 77);
      Bytes first;
      for (int run = 0; run < 2; ++run) {
        for (const Placement placement : kPlacements) {
          arena.start(placement);
          std::byte* const data = arena.add(input);
          context.channel().all_reduce(data, kCount, dtype, ReduceOp::sum(), guarded());
          if (first.empty()) first = bytes_of(data, input.size());
          EXPECT_EQ(difference(data, first, dtype), "")
              << "placement " << static_cast<int>(placement) << " run " << run;
        }
      }
      // The same on all ranks, by the ranks' own word.
      std::vector<Bytes> all(static_cast<std::size_t>(context.size()), Bytes(first.size()));
      std::vector<void*> outputs;
      for (Bytes& bytes : all) outputs.push_back(bytes.data());
      context.channel().all_gather(first.data(), outputs, kCount, dtype, guarded());
      for (const Bytes& theirs : all) EXPECT_EQ(difference(theirs.data(), first, dtype), "");
    }
  });
}

TEST_P(Reductions, FloatSumsAreNearTheFloat64Sum) {
  run([](RankContext& context) {
    constexpr std::size_t kCount = 10007;
    for (const auto& [dtype, epsilon] :
         {std::pair{DType::f32, 0x1p-24}, {DType::bf16, 0x1p-8}, {DType::f16, 0x1p-11}}) {
      std::vector<Bytes> inputs = make_inputs(dtype, kCount, context.size(), 5);
      Bytes& data = inputs[static_cast<std::size_t>(context.rank())];
      const std::vector<Bytes> before = inputs;
      context.channel().all_reduce(data.data(), kCount, dtype, ReduceOp::sum(), guarded());
      for (std::size_t i = 0; i < kCount; ++i) {
        double exact = 0;
        double magnitude = 0;
        for (const Bytes& input : before) {
          exact += floating_at(input.data(), dtype, i);
          magnitude += std::fabs(floating_at(input.data(), dtype, i));
        }
        // f32: each of N - 1 additions errs by epsilon of a partial sum; halves round once more.
        const double bound = magnitude * (context.size() * 0x1p-24 + epsilon);
        ASSERT_NEAR(floating_at(data.data(), dtype, i), exact, bound) << name_of(dtype) << " element " << i;
      }
    }
  });
}

TEST_P(Reductions, MinAndMaxCarryNanFromAnyRank) {
  run([](RankContext& context) {
    constexpr std::size_t kCount = 4099;
    const auto ranks = static_cast<std::size_t>(context.size());
    for (const DType dtype : {DType::f16, DType::bf16, DType::f32, DType::f64}) {
      for (const ReduceOp op : {ReduceOp::min(), ReduceOp::max()}) {
        std::vector<Bytes> inputs = make_inputs(dtype, kCount, context.size(), 3);
        // Element i is NaN on rank i mod (2 N), so half of the elements have one.
        for (std::size_t i = 0; i < kCount; ++i) {
          if (i % (2 * ranks) < ranks) set_floating(inputs[i % (2 * ranks)].data(), dtype, i, std::nan(""));
        }
        const Bytes expected = combine(dtype, op, inputs);
        Bytes& data = inputs[static_cast<std::size_t>(context.rank())];
        context.channel().all_reduce(data.data(), kCount, dtype, op, guarded());
        for (std::size_t i = 0; i < kCount; ++i) {
          const double value = floating_at(data.data(), dtype, i);
          if (i % (2 * ranks) < ranks) {
            ASSERT_TRUE(std::isnan(value)) << name_of(dtype) << " element " << i << " is " << value;
          } else {
            ASSERT_EQ(value, floating_at(expected.data(), dtype, i)) << name_of(dtype) << " element " << i;
          }
        }
      }
    }
  });
}

TEST_P(Reductions, SumsOfHalvesDoNotOverflowBeforeTheEnd) {
  run([](RankContext& context) {
    // 60000 + 60000 - 60000 - ... is beyond f16 on the way and within it at the end.
    constexpr std::array<double, 8> kValues{60000, 60000, -60000, -60000, 1, 2, 3, 4};  // again for further ranks
    std::vector<Bytes> inputs;
    for (int r = 0; r < context.size(); ++r) {
      inputs.emplace_back(2 * 33);
      const double value = kValues[static_cast<std::size_t>(r) % kValues.size()];
      for (std::size_t i = 0; i < 33; ++i) set_floating(inputs.back().data(), DType::f16, i, value);
    }
    Bytes& data = inputs[static_cast<std::size_t>(context.rank())];
    const Bytes expected = combine(DType::f16, ReduceOp::sum(), inputs);
    context.channel().all_reduce(data.data(), 33, DType::f16, ReduceOp::sum(), guarded());
    EXPECT_EQ(difference(data.data(), expected, DType::f16), "");
  });
}

TEST_P(Reductions, UndefinedPairsAreRefusedAndTheChannelGoesOn) {
  run([](RankContext& context) {
    Channel& channel = context.channel();
    std::vector<Bytes> blocks(static_cast<std::size_t>(context.size()), Bytes(16));
    std::vector<const void*> inputs;
    for (Bytes& block : blocks) inputs.push_back(block.data());
    Bytes out(16);
    int refused = 0;
    for (const DType dtype : kAllDTypes) {
      for (const ReduceOp op : kAllOps) {
        if (is_defined(op, dtype)) continue;
        ++refused;
        const std::string word(name_of(op.kind));
        expect_contains(expect_throw<InvalidArgument>([&] { channel.all_reduce(out.data(), 1, dtype, op, guarded()); }),
                        word);
        expect_throw<InvalidArgument>([&] { channel.reduce(inputs[0], out.data(), 1, dtype, op, 0, guarded()); });
        expect_throw<InvalidArgument>([&] { channel.reduce_scatter(inputs, out.data(), 1, dtype, op, guarded()); });
      }
    }
    // The table of ReduceOp: avg on 1 type, premul_sum on 5, min and max on 2 each, three bitwise ones on 6 each.
    EXPECT_EQ(refused, 1 + 5 + 2 * 2 + 6 * 3);
    std::int64_t one = 1;
    channel.all_reduce(&one, 1, DType::i64, ReduceOp::sum(), guarded());
    EXPECT_EQ(one, context.size());
  });
}

}  // namespace
}  // namespace gradwire::testing
