// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The checks of arguments that all backends share, case by case: which arguments are refused, with which message, and
// which arguments are accepted.
#include "gradwire/backend/validate_internal.h"

#include <gtest/gtest.h>

#include <array>
#include <utility>
#include <vector>

#include "gradwire/base/error.h"
#include "tests/conformance/conformance.h"
#include "tests/conformance/loopback_channel.h"

namespace gradwire::testing {
namespace {

// Rank 1 of 3.
class Validate : public ::testing::Test {
 protected:
  template <class F>
  void refused(F call, const std::string& word) {
    const std::string text = expect_throw<InvalidArgument>(call);
    expect_contains(text, "rank 1");
    expect_contains(text, word);
  }

  std::vector<const void*> inputs() { return {&memory_[0], &memory_[10], &memory_[20]}; }
  std::vector<void*> outputs() { return {&memory_[30], &memory_[40], &memory_[50]}; }

  static constexpr DType kType = DType::f32;
  static constexpr ReduceOp kSum = ReduceOp::sum();
  std::array<float, 100> memory_{};
  LoopbackChannel channel_{std::make_shared<LoopbackHub>(3), "0", 1};
};

TEST_F(Validate, GoodArgumentsPass) {
  EXPECT_NO_THROW(validate::broadcast(channel_, &memory_[0], 10, kType, 2));
  EXPECT_NO_THROW(validate::all_reduce(channel_, &memory_[0], 10, kType, kSum));
  EXPECT_NO_THROW(validate::reduce(channel_, &memory_[0], nullptr, 10, kType, kSum, 0));
  EXPECT_NO_THROW(validate::reduce(channel_, &memory_[0], &memory_[0], 10, kType, kSum, 1));
  EXPECT_NO_THROW(validate::all_gather(channel_, &memory_[0], outputs(), 10, kType));
  EXPECT_NO_THROW(validate::all_gather(channel_, &memory_[40], outputs(), 10, kType));
  EXPECT_NO_THROW(validate::gather(channel_, &memory_[0], {}, 10, kType, 0));
  EXPECT_NO_THROW(validate::gather(channel_, &memory_[40], outputs(), 10, kType, 1));
  EXPECT_NO_THROW(validate::scatter(channel_, {}, &memory_[0], 10, kType, 0));
  EXPECT_NO_THROW(validate::scatter(channel_, inputs(), &memory_[10], 10, kType, 1));
  EXPECT_NO_THROW(validate::reduce_scatter(channel_, inputs(), &memory_[20], 10, kType, kSum));
  EXPECT_NO_THROW(validate::isend(channel_, nullptr, 0, 1, 0));
  EXPECT_NO_THROW(validate::irecv(channel_, &memory_[0], 4, kAnySource, 0));
}

TEST_F(Validate, NothingToMoveNeedsNoMemory) {
  const std::vector<const void*> no_inputs(3);
  const std::vector<void*> no_outputs(3);
  EXPECT_NO_THROW(validate::broadcast(channel_, nullptr, 0, kType, 0));
  EXPECT_NO_THROW(validate::all_reduce(channel_, nullptr, 0, kType, kSum));
  EXPECT_NO_THROW(validate::all_gather(channel_, nullptr, no_outputs, 0, kType));
  EXPECT_NO_THROW(validate::reduce_scatter(channel_, no_inputs, nullptr, 0, kType, kSum));
  EXPECT_NO_THROW(validate::all_to_all(channel_, std::vector<ConstSlice>(3), std::vector<Slice>(3), kType));
}

TEST_F(Validate, RootsAndPeersOutsideTheWorldAreRefused) {
  for (const int rank : {-1, 3, 64}) {
    refused([&] { validate::broadcast(channel_, &memory_[0], 1, kType, rank); }, "root");
    refused([&] { validate::gather(channel_, &memory_[0], outputs(), 1, kType, rank); }, "root");
    refused([&] { validate::isend(channel_, &memory_[0], 4, rank, 0); }, "destination");
  }
  refused([&] { validate::irecv(channel_, &memory_[0], 4, 3, 0); }, "source");
}

TEST_F(Validate, NullWhereThereIsSomethingToMoveIsRefused) {
  refused([&] { validate::all_reduce(channel_, nullptr, 1, kType, kSum); }, "data is null");
  refused([&] { validate::reduce(channel_, &memory_[0], nullptr, 1, kType, kSum, 1); }, "output is null");
  std::vector<void*> list = outputs();
  list[2] = nullptr;
  refused([&] { validate::all_gather(channel_, &memory_[0], list, 1, kType); }, "outputs[2] is null");
}

TEST_F(Validate, ListsNeedOneEntryARankOnTheRootAndNoneElsewhere) {
  const std::vector<void*> two{&memory_[30], &memory_[40]};
  refused([&] { validate::all_gather(channel_, &memory_[0], two, 1, kType); }, "outputs has 2 entries");
  refused([&] { validate::all_gather(channel_, &memory_[0], std::vector<void*>(65), 1, kType); }, "65 entries");
  refused([&] { validate::gather(channel_, &memory_[0], outputs(), 1, kType, 0); }, "leave it empty");
  refused([&] { validate::scatter(channel_, inputs(), &memory_[0], 1, kType, 2); }, "leave it empty");
}

TEST_F(Validate, SizesThatNoMemoryHasAreRefused) {
  const std::size_t most = validate::kMaxBytes / 4;
  EXPECT_NO_THROW(validate::all_reduce(channel_, &memory_[0], most, kType, kSum));
  refused([&] { validate::all_reduce(channel_, &memory_[0], most + 1, kType, kSum); }, "count");
  // Three ranks' worth must fit.
  refused([&] { validate::all_gather(channel_, &memory_[0], outputs(), most / 2, kType); }, "count");
  refused([&] { validate::isend(channel_, &memory_[0], validate::kMaxBytes + 1, 0, 0); }, "message");
  refused([&] { validate::allocate(channel_, validate::kMaxBytes + 1); }, "bytes");
  // One region holds the parts of the three ranks, so their sum must not wrap around.
  refused([&] { validate::allocate(channel_, validate::kMaxBytes / 3); }, "bytes");
  EXPECT_NO_THROW(validate::allocate(channel_, validate::kMaxBytes / 4));
}

TEST_F(Validate, BuffersThatOverlapAreRefused) {
  refused([&] { validate::reduce(channel_, &memory_[0], &memory_[9], 10, kType, kSum, 1); }, "overlap");
  refused([&] { validate::reduce(channel_, &memory_[9], &memory_[0], 10, kType, kSum, 1); }, "overlap");
  // Another rank's slot is no place for the input.
  refused([&] { validate::all_gather(channel_, &memory_[30], outputs(), 10, kType); }, "overlap");
  refused([&] { validate::all_gather(channel_, &memory_[0], outputs(), 11, kType); }, "overlap");
  refused([&] { validate::scatter(channel_, inputs(), &memory_[0], 10, kType, 1); }, "overlap");
  refused([&] { validate::reduce_scatter(channel_, inputs(), &memory_[5], 10, kType, kSum); }, "overlap");
}

TEST_F(Validate, AllToAllChecksEveryPair) {
  std::vector<ConstSlice> in{{&memory_[0], 5}, {&memory_[10], 5}, {&memory_[20], 0}};
  std::vector<Slice> out{{&memory_[30], 7}, {&memory_[40], 5}, {nullptr, 0}};
  EXPECT_NO_THROW(validate::all_to_all(channel_, in, out, kType));
  out[1].count = 6;  // from itself
  refused([&] { validate::all_to_all(channel_, in, out, kType); }, "itself");
  out[1] = {&memory_[10], 5};  // the own part may stay where it is
  EXPECT_NO_THROW(validate::all_to_all(channel_, in, out, kType));
  out[0] = {&memory_[0], 5};  // another's may not: it could be overwritten before it is sent
  refused([&] { validate::all_to_all(channel_, in, out, kType); }, "overlap");
}

// Wide worlds look for overlaps in another way.
TEST_F(Validate, AllToAllChecksEveryPairOfAWideWorld) {
  constexpr std::size_t kRanks = 40;
  const LoopbackChannel wide(std::make_shared<LoopbackHub>(static_cast<int>(kRanks)), "0", 1);
  std::array<float, 10 * kRanks> sent{};
  std::array<float, 10 * kRanks> received{};
  std::vector<ConstSlice> in;
  std::vector<Slice> out;
  for (std::size_t i = 0; i < kRanks; ++i) {
    in.push_back({&sent[10 * i], i % 3 == 0 ? std::size_t{0} : 9});
    out.push_back({&received[10 * (kRanks - 1 - i)], 9});
  }
  EXPECT_NO_THROW(validate::all_to_all(wide, in, out, kType));
  out[1] = {&sent[10], 9};  // the own part may stay where it is
  EXPECT_NO_THROW(validate::all_to_all(wide, in, out, kType));
  for (std::size_t i = 0; i < kRanks; ++i) {
    if (i == 1 || i % 3 == 0) continue;
    const Slice before = std::exchange(out[(i + 1) % kRanks], Slice{&sent[10 * i + 8], 3});
    if ((i + 1) % kRanks != 1) refused([&] { validate::all_to_all(wide, in, out, kType); }, "overlap");
    out[(i + 1) % kRanks] = before;
  }
}

TEST_F(Validate, UnknownDtypesAndOpsAreRefused) {
  refused([&] { validate::broadcast(channel_, &memory_[0], 1, static_cast<DType>(11), 0); }, "dtype");
  refused([&] { validate::all_reduce(channel_, &memory_[0], 1, kType, {static_cast<ReduceOp::Kind>(9)}); },
          "reduce op");
  refused([&] { validate::all_reduce(channel_, &memory_[0], 1, DType::c64, ReduceOp::max()); }, "max");
}

TEST_F(Validate, TheGenericChannelKeepsTheUpperTagsToItself) {
  refused([&] { channel_.isend(&memory_[0], 4, 0, kFirstReservedTag); }, "reserved");
  refused([&] { channel_.irecv(&memory_[0], 4, 0, 0xffff'ffffU); }, "reserved");
}

}  // namespace
}  // namespace gradwire::testing
