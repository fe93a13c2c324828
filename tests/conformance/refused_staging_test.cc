// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Proves: when one rank has no memory for staging messages, a collective throws ResourceError on all ranks, no data has
// moved, and the channel stays usable. This program's own operator new refuses the memory.
#include <cstdlib>
#include <new>

#include "gradwire/base/error.h"
#include "tests/conformance/conformance.h"

namespace {

// Of the calling thread, which is a rank: larger arrays are refused. 0: none is.
thread_local std::size_t largest_array = 0;

}  // namespace

void* operator new[](std::size_t bytes) {
  if (largest_array > 0 && bytes > largest_array) throw std::bad_alloc();
  if (void* const memory = std::malloc(bytes > 0 ? bytes : 1)) return memory;
  throw std::bad_alloc();
}
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }

namespace gradwire::testing {
namespace {

constexpr std::size_t kCount = 300'000;

using Collective = void (*)(RankContext& context, const std::vector<float>& input, std::vector<float>& output);

void all_reduce(RankContext& context, const std::vector<float>& input, std::vector<float>& output) {
  output = input;
  context.channel().all_reduce(output.data(), kCount, DType::f32, ReduceOp::sum(), guarded());
}

void reduce(RankContext& context, const std::vector<float>& input, std::vector<float>& output) {
  context.channel().reduce(input.data(), output.data(), kCount, DType::f32, ReduceOp::sum(), 0, guarded());
  if (context.rank() != 0) output.assign(kCount, static_cast<float>(context.size()));
}

void reduce_scatter(RankContext& context, const std::vector<float>& input, std::vector<float>& output) {
  const std::vector<const void*> inputs(static_cast<std::size_t>(context.size()), input.data());
  context.channel().reduce_scatter(inputs, output.data(), kCount, DType::f32, ReduceOp::sum(), guarded());
}

class RefusedStaging : public ::testing::TestWithParam<Collective> {};

TEST_P(RefusedStaging, IsAnErrorOnAllRanksAndTheChannelGoesOn) {
  run_world({Kind::loopback, 3}, [](RankContext& context) {
    const std::vector<float> input(kCount, 1.0F);
    std::vector<float> output(kCount);
    if (context.rank() == 1) largest_array = 1 << 16;
    const std::string text = expect_throw<ResourceError>([&] { GetParam()(context, input, output); });
    expect_contains(text, "rank 1 had no ");
    largest_array = 0;
    GetParam()(context, input, output);
    EXPECT_EQ(output, std::vector<float>(kCount, 3.0F));
  });
}

std::string collective_name(const ::testing::TestParamInfo<Collective>& info) {
  if (info.param == &all_reduce) return "all_reduce";
  return info.param == &reduce ? "reduce" : "reduce_scatter";
}
INSTANTIATE_TEST_SUITE_P(Collectives, RefusedStaging, ::testing::Values(&all_reduce, &reduce, &reduce_scatter),
                         collective_name);

}  // namespace
}  // namespace gradwire::testing
