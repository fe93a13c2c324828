// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Large counts around every power of two. Slow, because the oracle is slow.
#include "gradwire/base/strings.h"
#include "tests/conformance/conformance.h"

namespace gradwire::testing {
namespace {

GRADWIRE_CONFORMANCE_SUITE(SlowSweep, 2, 3, 5);

void sweep(RankContext& context, DType dtype, ReduceOp op) {
  constexpr std::size_t kLargest = (std::size_t{4} << 20) + 1;
  Arena arena(context, kLargest * size_of(dtype));
  // One input for all counts: a prefix of it is the input, and a prefix of its reduction the result.
  const std::vector<Bytes> inputs = make_inputs(dtype, kLargest, context.size(), 1);
  const Bytes expected = combine(dtype, op, inputs);
  std::size_t turn = 0;
  for (std::size_t power = std::size_t{1} << 14; power < kLargest; power *= 2) {
    for (const std::size_t count : {power - 1, power, power + 1}) {
      for (const Placement placement : {kPlacements[turn % 4], kPlacements[(turn + 1) % 4]}) {
        SCOPED_TRACE(concat(name_of(dtype), " ", name_of(op.kind), " count ", count, " placement ",
                            static_cast<int>(placement)));
        const std::size_t bytes = count * size_of(dtype);
        arena.start(placement);
        std::byte* const data = arena.add(bytes_of(inputs[static_cast<std::size_t>(context.rank())].data(), bytes));
        context.channel().all_reduce(data, count, dtype, op, guarded());
        EXPECT_EQ(difference(data, bytes_of(expected.data(), bytes), dtype), "");
        arena.expect_fences();
      }
      ++turn;
    }
  }
}

TEST_P(SlowSweep, AllReduceOfFloats) {
  run([](RankContext& context) { sweep(context, DType::f32, ReduceOp::sum()); });
}
TEST_P(SlowSweep, AllReduceOfBfloat16) {
  run([](RankContext& context) { sweep(context, DType::bf16, ReduceOp::avg()); });
}
TEST_P(SlowSweep, AllReduceOfBytes) {
  run([](RankContext& context) { sweep(context, DType::u8, ReduceOp::bxor()); });
}

// Bytes, not elements: what moves data without looking at it cuts at bytes.
TEST_P(SlowSweep, BroadcastAndAllGatherAroundEveryPowerOfTwoBytes) {
  run([](RankContext& context) {
    constexpr std::size_t kLargest = (std::size_t{4} << 20) + 1;
    const auto ranks = static_cast<std::size_t>(context.size());
    Arena arena(context, kLargest * (ranks + 1));
    const std::vector<Bytes> inputs = make_inputs(DType::u8, kLargest, context.size(), 2);
    std::size_t turn = 0;
    for (std::size_t power = std::size_t{1} << 10; power < kLargest; power *= 2) {
      for (const std::size_t count : {power - 1, power, power + 1}) {
        SCOPED_TRACE(concat("count ", count));
        arena.start(kPlacements[turn % 4]);
        const std::size_t root = turn++ % ranks;
        std::byte* const data = arena.add(bytes_of(inputs[static_cast<std::size_t>(context.rank())].data(), count));
        std::vector<void*> outputs;
        for (std::size_t r = 0; r < ranks; ++r) outputs.push_back(arena.add(count));
        context.channel().all_gather(data, outputs, count, DType::u8, guarded());
        for (std::size_t r = 0; r < ranks; ++r) {
          EXPECT_EQ(difference(static_cast<std::byte*>(outputs[r]), bytes_of(inputs[r].data(), count), DType::u8), "");
        }
        context.channel().broadcast(data, count, DType::u8, static_cast<int>(root), guarded());
        EXPECT_EQ(difference(data, bytes_of(inputs[root].data(), count), DType::u8), "");
        arena.expect_fences();
      }
    }
  });
}

}  // namespace
}  // namespace gradwire::testing
