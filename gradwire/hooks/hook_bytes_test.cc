// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The bytes that a rank sends in a step are those of the formulas in known_hooks() and in the hooks' headers. What is
// expected is worked out here, from the formulas, in numbers: no code of the hooks has a part in it.
#include <array>

#include "gradwire/hooks/debugging_hooks.h"
#include "gradwire/hooks/default_hooks.h"
#include "gradwire/hooks/hook_test_support.h"
#include "gradwire/hooks/mixed_precision_hooks.h"
#include "gradwire/hooks/registry.h"

namespace gradwire::testing::hook_bytes_test {
namespace {

// In one bucket; their gradients are what forward() is given.
struct GivenImpl : torch::nn::Module {
  explicit GivenImpl(const std::vector<std::vector<std::int64_t>>& shapes) {
    for (const auto& shape : shapes) register_parameter(concat("p", parameters_.size()), at::zeros(shape));
  }
  at::Tensor forward(const std::vector<at::Tensor>& gradients) {
    at::Tensor loss = at::zeros({});
    const auto all = parameters();
    for (std::size_t i = 0; i < all.size(); ++i) loss = loss + (all[i] * gradients[i]).sum();
    return loss;
  }
};
TORCH_MODULE(Given);

using Shapes = std::vector<std::vector<std::int64_t>>;

// (10 + rank) ones, the rest far smaller.
std::vector<at::Tensor> gradients_for(const Shapes& shapes, int rank) {
  std::vector<at::Tensor> gradients;
  for (const auto& shape : shapes) gradients.push_back(random_tensor(shape, rank + 1) * 1e-3);
  gradients[0].view(-1).narrow(0, 0, 10 + rank).fill_(1);
  return gradients;
}

// What each rank sends in the last of `steps` steps; all ranks alike, else 0.
std::uint64_t bytes_of_step(const Shapes& shapes, int world, const MakeHook& make, int steps = 4) {
  std::vector<std::uint64_t> sent(static_cast<std::size_t>(world));
  run_ranks({"threads"}, world, [&](int rank, const std::shared_ptr<ProcessGroup>& group) {
    Given net(shapes);
    DistributedDataParallel ddp(net, options_for({"threads", 1, false}, group));
    ddp.register_comm_hook(make(group));
    std::uint64_t before = 0;
    for (int step = 0; step < steps; ++step) {
      ddp.zero_grad();
      before = ddp.core().payload_bytes();
      ddp(gradients_for(shapes, rank)).backward();
    }
    EXPECT_EQ(ddp.core().bucket_plan().size(), 1U);
    sent[static_cast<std::size_t>(rank)] = ddp.core().payload_bytes() - before;
  });
  for (const std::uint64_t one : sent) EXPECT_EQ(one, sent[0]);
  return sent[0];
}

MakeHook named(const std::string& spec) {
  return [spec](const auto&) { return make_hook(spec); };
}

constexpr std::array kWorlds{2, 4, 8};

struct Row {
  const char* spec;
  std::array<std::uint64_t, 3> bytes;  // at worlds 2, 4 and 8
};

void expect_bytes(const Shapes& shapes, const Row& row, const MakeHook& make) {
  for (std::size_t i = 0; i < kWorlds.size(); ++i) {
    SCOPED_TRACE(concat(row.spec, ", ", kWorlds[i], " ranks"));
    EXPECT_EQ(bytes_of_step(shapes, kWorlds[i], make), row.bytes[i]);
  }
}

// A matrix and a vector: n = 3072 + 100 = 3172 elements.
const Shapes kShapes{{64, 48}, {100}};

// 2 (N-1)/N B is B at 2 ranks, 1.5 B at 4 and 1.75 B at 8.
TEST(HookBytes, OfPyTorchsTenAreThoseOfTheFormulas) {
  const std::vector<Row> rows{
      {"allreduce", {12688, 19032, 22204}},                    // B = 4 n = 12688
      {"fp16_compress", {6344, 9516, 11102}},                  // B = 2 n = 6344
      {"bf16_compress", {6344, 9516, 11102}},                  //
      {"quantize_per_tensor", {3177, 9531, 22239}},            // (N-1) (n + 5)
      {"quantize_per_channel", {3207, 9621, 22449}},           // (N-1) (n + 5 * 7): ceil(3172 / 512) = 7
      {"power_sgd:start=2", {848, 1272, 1484}},                // B = 4 * 1 * (64 + 48) and 4 * 100, the vector
      {"power_sgd_rank2:start=2", {1296, 1944, 2268}},         // B = 4 * 2 * (64 + 48) + 4 * 100
      {"batched_power_sgd:start=2", {456, 684, 798}},          // B = 8 * 1 * 57: 56 * 56 < 3172 <= 57 * 57
      {"batched_power_sgd_rank2:start=2", {912, 1368, 1596}},  // B = 8 * 2 * 57
      {"noop", {0, 0, 0}},                                     //
  };
  for (const Row& row : rows) expect_bytes(kShapes, row, named(row.spec));
}

// 1024 elements are two rows of 512. PyTorch pads them with an empty third one.
TEST(HookBytes, AnExactMultipleOfTheRowHasNoRowMore) {
  expect_bytes({{1024}}, {"quantize_per_channel", {1034, 3102, 7238}}, named("quantize_per_channel"));
  expect_bytes({{1025}}, {"quantize_per_channel", {1040, 3120, 7280}}, named("quantize_per_channel"));
}

// By type: PowerSGD averages plainly for a thousand iterations.
TEST(HookBytes, OfTheTypesByThemselves) {
  const std::array<std::uint64_t, 10> at_four{19032, 9516, 9516, 9531, 9621, 19032, 19032, 19032, 19032, 0};
  for (std::size_t type = 0; type < at_four.size(); ++type) {
    const auto make = [&](const auto&) { return make_hook(static_cast<DDPCommHookType>(type)); };
    EXPECT_EQ(bytes_of_step(kShapes, 4, make), at_four[type]) << type;
  }
}

// Of the compressed all-reduce 2 (N-1) enc(L), where L = 1600, 800 and 400 = 16 ceil(ceil(3172 / N) / 16); of the
// all-gather (N-1) enc(3172).
TEST(HookBytes, OfCompressorsAreThoseOfTheFormulas) {
  const std::vector<Row> rows{
      {"fp16", {6400, 9600, 11200}},                      // enc(L) = 2 L
      {"bf16", {6400, 9600, 11200}},                      //
      {"fp8_e4m3", {3216, 4824, 5656}},                   // 4 ceil(L / 1024) + L = 1608, 804, 404
      {"fp8_e5m2", {3216, 4824, 5656}},                   //
      {"int8", {3256, 4896, 5712}},                       // 4 ceil(L / 256) + L = 1628, 816, 408
      {"int4", {1656, 2496, 2912}},                       // 4 ceil(L / 256) + L / 2 = 828, 416, 208
      {"int4:memory=ef21", {1656, 2496, 2912}},           // whatever the memory
      {"int2", {856, 1296, 1512}},                        // 4 ceil(L / 256) + L / 4 = 428, 216, 108
      {"one_bit", {408, 624, 756}},                       // 4 ceil(L / 4096) + L / 8 = 204, 104, 54
      {"sign", {402, 606, 714}},                          // 1 + L / 8 = 201, 101, 51
      {"sign_sgd", {402, 606, 714}},                      //
      {"random_k", {136, 216, 280}},                      // 4 ceil(L / 100) + 4 = 68, 36, 20
      {"top_k", {256, 768, 1792}},                        // enc(n) = 8 * 32
      {"top_k:exchange=all_reduce", {256, 384, 448}},     // 8 ceil(L / 100) = 128, 64, 32
      {"dgc", {6344, 19032, 44408}},                      // enc(n) = 8 * 793: a quarter in the first stage
      {"dgc:ramp=0", {32, 96, 224}},                      // 8 * 4, at last
      {"int8:exchange=all_gather", {3224, 9672, 22568}},  // enc(n) = 4 * 13 + 3172
      {"threshold", {96, 336, 1008}},                     // (N-1) (8 + m), m = 8 (10 + N - 1) of the last rank
      {"int8:vectors=plain", {3520, 5280, 6188}},         // 3072: L = 1536, 768, 384, enc 1560, 780, 392; 400
  };
  for (const Row& row : rows) expect_bytes(kShapes, row, named(row.spec));
}

TEST(HookBytes, OfWrappersAndPoliciesAreThoseOfTheirHeaders) {
  const std::vector<Row> rows{
      {"allreduce:wrap=fp16", {6344, 9516, 11102}},       // 2 n
      {"power_sgd:start=2,wrap=bf16", {648, 972, 1134}},  // factors in float32, the vector in bfloat16
      {"int8:wrap=fp16", {3256, 4896, 5712}},             // the codec's, of as many values
      {"int4:warm_up=100", {12688, 19032, 22204}},        // plain
      {"int4:min=64Ki", {12688, 19032, 22204}},           // plain
      {"int4:min=4Ki", {1656, 2496, 2912}},               // not plain
  };
  for (const Row& row : rows) expect_bytes(kShapes, row, named(row.spec));
  expect_bytes(kShapes, {"float64", {25376, 38064, 44408}},  // 8 n
               [](auto) { return make_reduce_in_dtype_hook(at::kDouble); });
  expect_bytes(kShapes, {"checking", {12688 + 16, 19032 + 48, 22204 + 112}},  // 8 * 2 parameters * (N-1) more
               [](auto) { return make_checking_hook(make_allreduce_hook()); });
}

// Of the compressed all-reduce they do not grow with the world, but for the share of N ranks that is other ranks'.
TEST(HookBytes, OfTheCompressedAllReduceDoNotGrowWithTheWorld) {
  const Shapes shapes{{100000}};
  for (const char* codec : {"fp16", "bf16", "fp8_e4m3", "fp8_e5m2", "int8", "int4", "int2", "one_bit", "sign", "top_k",
                            "dgc:ramp=0", "random_k"}) {
    const std::string spec = codec;
    const auto make = named(concat(spec, spec.find(':') == std::string::npos ? ':' : ',', "exchange=all_reduce"));
    const auto at_two = static_cast<double>(bytes_of_step(shapes, 2, make));
    const auto at_eight = static_cast<double>(bytes_of_step(shapes, 8, make));
    EXPECT_GT(at_two, 0) << spec;
    EXPECT_LE(at_eight, 1.1 * 1.75 * at_two) << spec;
  }
}

}  // namespace
}  // namespace gradwire::testing::hook_bytes_test
