// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Channel::allocate.
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <functional>
#include <string_view>
#include <vector>

#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "gradwire/base/trace.h"
#include "tests/conformance/conformance.h"

namespace gradwire::testing {
namespace {

GRADWIRE_CONFORMANCE_SUITE(Memory, 1, 2, 3, 5, 8, kWideWorld);

void expect_fresh(const Allocation& allocation, std::size_t bytes) {
  EXPECT_EQ(allocation.bytes, bytes);
  if (bytes == 0) return;
  ASSERT_NE(allocation.data, nullptr);
  const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(allocation.data.get()) % page, 0U);
  const std::byte* const data = allocation.data.get();
  EXPECT_TRUE(std::all_of(data, data + bytes, [](std::byte b) { return b == std::byte{0}; }));
}

TEST_P(Memory, IsZeroedAndAlignedAndOfTheSameKindOnAllRanks) {
  run([](RankContext& context) {
    for (const std::size_t bytes :
         {std::size_t{0}, std::size_t{1}, std::size_t{4096}, std::size_t{4097}, std::size_t{3'000'000}}) {
      SCOPED_TRACE(concat(bytes, " bytes"));
      const Allocation allocation = context.channel().allocate(bytes, guarded());
      expect_fresh(allocation, bytes);
      std::int64_t in_place = allocation.in_place ? 1 : 0;
      context.channel().all_reduce(&in_place, 1, DType::i64, ReduceOp::sum(), guarded());
      EXPECT_TRUE(in_place == 0 || in_place == context.size());
      if (bytes > 0) {
        EXPECT_EQ(allocation.in_place, context.backend().capabilities().in_place_memory);
      }
    }
  });
}

TEST_P(Memory, IsWritableAndPrivateToTheRankUntilACollectiveMovesIt) {
  run([](RankContext& context) {
    constexpr std::size_t kBytes = 100'000;
    const Allocation mine = context.channel().allocate(kBytes, guarded());
    const Bytes content = make_input(DType::u8, kBytes, context.rank(), 1);
    std::copy(content.begin(), content.end(), mine.data.get());
    context.channel().barrier(guarded());
    EXPECT_EQ(difference(mine.data.get(), content, DType::u8), "");
  });
}

TEST_P(Memory, IsGivenBackWithItsLastCopyAndAFreshOneIsZeroedAgain) {
  run([](RankContext& context) {
    for (int round = 0; round < 30; ++round) {
      Allocation allocation = context.channel().allocate(200'000, guarded());
      expect_fresh(allocation, 200'000);
      std::fill_n(allocation.data.get(), allocation.bytes, std::byte{0xff});
      const Allocation copy = allocation;
      allocation = {};
      EXPECT_EQ(copy.data.get()[199'999], std::byte{0xff});
    }
  });
}

TEST_P(Memory, OutlivesItsChannelAndItsBackend) {
  run([](RankContext& context) {
    std::unique_ptr<Channel> channel = context.channel().duplicate(guarded());
    const Allocation of_duplicate = channel->allocate(50'000, guarded());
    const Allocation of_first = context.channel().allocate(50'000, guarded());
    std::fill_n(of_duplicate.data.get(), of_duplicate.bytes, std::byte{1});
    channel.reset();
    context.leave();
    std::fill_n(of_first.data.get(), of_first.bytes, std::byte{2});
    EXPECT_EQ(of_duplicate.data.get()[49'999], std::byte{1});
    EXPECT_EQ(of_first.data.get()[49'999], std::byte{2});
    // The others may be gone by now, with their mappings.
    context.meet("all left");
    EXPECT_EQ(of_first.data.get()[0], std::byte{2});
  });
}

TEST_P(Memory, OfOneChannelServesTheOthers) {
  run([](RankContext& context) {
    constexpr std::size_t kCount = 30'000;
    const std::unique_ptr<Channel> duplicate = context.channel().duplicate(guarded());
    const Allocation allocation = context.channel().allocate(kCount * sizeof(float), guarded());
    const std::vector<Bytes> inputs = make_inputs(DType::f32, kCount, context.size(), 3);
    const Bytes& mine = inputs[static_cast<std::size_t>(context.rank())];
    std::copy(mine.begin(), mine.end(), allocation.data.get());
    duplicate->all_reduce(allocation.data.get(), kCount, DType::f32, ReduceOp::sum(), guarded());
    EXPECT_EQ(difference(allocation.data.get(), combine(DType::f32, ReduceOp::sum(), inputs), DType::f32), "");
  });
}

TEST_P(Memory, PartsOfAnAllocationAreReducedWithoutTouchingTheRest) {
  run([](RankContext& context) {
    // Ranks use different parts of the same allocation in one call, as buckets of different offsets would.
    constexpr std::size_t kCount = 5'003;
    constexpr std::size_t kBytes = 200'000;
    const Allocation allocation = context.channel().allocate(kBytes, guarded());
    std::fill_n(allocation.data.get(), kBytes, std::byte{0x77});
    const std::vector<Bytes> inputs = make_inputs(DType::f32, kCount, context.size(), 4);
    const std::size_t offset = 4000 + 13 * static_cast<std::size_t>(context.rank());
    std::copy(inputs[static_cast<std::size_t>(context.rank())].begin(),
              inputs[static_cast<std::size_t>(context.rank())].end(), allocation.data.get() + offset);
    context.channel().all_reduce(allocation.data.get() + offset, kCount, DType::f32, ReduceOp::sum(), guarded());
    const Bytes expected = combine(DType::f32, ReduceOp::sum(), inputs);
    EXPECT_EQ(difference(allocation.data.get() + offset, expected, DType::f32), "");
    for (std::size_t i = 0; i < kBytes; ++i) {
      if (i >= offset && i < offset + expected.size()) continue;
      ASSERT_EQ(allocation.data.get()[i], std::byte{0x77}) << "byte " << i;
    }
  });
}

TEST_P(Memory, IsReachedByEveryRankWhereItIsReducedInPlace) {
  run([](RankContext& context) {
    constexpr std::size_t kBytes = 30'000;
    constexpr std::size_t kOffset = 4'099;
    const int size = context.size();
    const std::unique_ptr<Channel> duplicate = context.channel().duplicate(guarded());
    Allocation allocation = context.channel().allocate(kBytes, guarded());
    std::byte* const mine = allocation.data.get() + kOffset;
    // A duplicate finds it, too.
    const auto places = duplicate->symmetric_memory(mine, kBytes - kOffset);
    const std::vector<std::byte> elsewhere(100);
    EXPECT_TRUE(context.channel().symmetric_memory(elsewhere.data(), elsewhere.size()).empty());
    EXPECT_TRUE(context.channel().symmetric_memory(mine, kBytes + 8192).empty()) << "beyond its end";
    if (!allocation.in_place) {
      EXPECT_TRUE(places.empty());
      return;
    }
    ASSERT_EQ(places.size(), static_cast<std::size_t>(size));
    EXPECT_EQ(places[static_cast<std::size_t>(context.rank())].get(), mine);
    // Every rank writes its number into a byte of its own on every rank.
    for (const auto& place : places) place.get()[context.rank()] = std::byte(context.rank() + 1);
    context.channel().barrier(guarded());
    for (int rank = 0; rank < size; ++rank) EXPECT_EQ(mine[rank], std::byte(rank + 1));
    // The owner's copy goes; the view stays.
    allocation = {};
    context.channel().barrier(guarded());
    const std::byte* const next = places[static_cast<std::size_t>((context.rank() + 1) % size)].get();
    for (int rank = 0; rank < size; ++rank) EXPECT_EQ(next[rank], std::byte(rank + 1));
  });
}

// What rank 1 does before it takes what the others offer.
std::function<void()> before_the_copy;

void on_copy(void*, const trace::Event& event) noexcept {
  if (before_the_copy && std::string_view(event.name) == "collective.copy") before_the_copy();
}

class SharedMemory : public ConformanceTest {};
INSTANTIATE_TEST_SUITE_P(All, SharedMemory, ::testing::Values(World{Kind::shm, 2}, World{Kind::shm, 3}), world_name);

// Rank 0 waits for rank 1 at the exit, until its deadline, and uses its memory for something else then.
TEST_P(SharedMemory, ARankThatGivesUpOnACallFailsThoseWhoReadItsMemory) {
  run([](RankContext& context) {
    constexpr std::size_t kCount = 100'003;
    const Allocation memory = context.channel().allocate(kCount * sizeof(float), guarded());
    auto* const input = reinterpret_cast<float*>(memory.data.get());
    std::fill_n(input, kCount, 1.0F);
    std::vector<std::vector<float>> outputs(static_cast<std::size_t>(context.size()), std::vector<float>(kCount));
    std::vector<void*> targets;
    for (auto& output : outputs) targets.push_back(output.data());
    const auto gather = [&](const CallOptions& options) {
      context.channel().all_gather(input, targets, kCount, DType::f32, options);
    };
    context.meet("ready");
    if (context.rank() == 0) {
      expect_throw<TimeoutError>([&] { gather(with_timeout(Milliseconds(300))); });
      std::fill_n(input, kCount, 2.0F);
      context.store().set("overwritten", "");
    } else if (context.rank() == 1) {
      before_the_copy = [&] { context.store().get("overwritten"); };
      trace::set_sink(&on_copy, nullptr);
      expect_contains(expect_throw<TimeoutError>([&] { gather(guarded()); }), "rank 0 failed");
      trace::set_sink(nullptr, nullptr);
      before_the_copy = nullptr;
    } else {
      expect_contains(expect_throw<TimeoutError>([&] { gather(guarded()); }), "rank 0 failed");
    }
    context.meet("end");
  });
}

// An engine that asks the kernel for more than there is could take the whole machine down: here files end at 1 GiB.
void limit_file_sizes() {
  ::signal(SIGXFSZ, SIG_IGN);
  const rlimit limit{std::size_t{1} << 30, std::size_t{1} << 30};
  ::setrlimit(RLIMIT_FSIZE, &limit);
}

TEST_P(Memory, ASizeThatNoMachineHasIsRefusedOnAllRanksAndTheChannelGoesOn) {
  run([](RankContext& context) {
    if (context.world().kind == Kind::shm) limit_file_sizes();  // of this rank's process only
    EXPECT_THROW(context.channel().allocate(static_cast<std::size_t>(-1), guarded()), InvalidArgument);
    EXPECT_THROW(context.channel().allocate(std::size_t{1} << 50, guarded()), ResourceError);
    std::int64_t one = 1;
    context.channel().all_reduce(&one, 1, DType::i64, ReduceOp::sum(), guarded());
    EXPECT_EQ(one, context.size());
  });
}

}  // namespace
}  // namespace gradwire::testing
