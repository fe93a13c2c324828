// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Ranks that make different calls: all ranks get a MismatchError that names the ranks and their calls, no rank hangs,
// and nothing is written.
#include <functional>

#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "tests/conformance/conformance.h"

namespace gradwire::testing {
namespace {

GRADWIRE_CONFORMANCE_SUITE(Mismatch, 2, 3, 5, kWideWorld);

// Buffers large enough for whatever the cases below name; what is in them must not change on a mismatch.
class Scratch {
 public:
  explicit Scratch(int ranks) {
    for (int r = 0; r < ranks; ++r) {
      parts_.emplace_back(kBytes, std::byte{0x33});
      results_.emplace_back(kBytes, std::byte{0x33});
    }
  }
  void* data() { return parts_[0].data(); }
  void* result() { return results_[0].data(); }
  std::vector<const void*> inputs() { return {pointers(parts_)}; }
  std::vector<void*> outputs() {
    std::vector<void*> list;
    for (Bytes& part : results_) list.push_back(part.data());
    return list;
  }
  void expect_unchanged() const {
    for (const auto* list : {&parts_, &results_}) {
      for (const Bytes& part : *list) EXPECT_EQ(difference(part.data(), Bytes(kBytes, std::byte{0x33}), DType::u8), "");
    }
  }

 private:
  static constexpr std::size_t kBytes = 100'000;
  static std::vector<const void*> pointers(const std::vector<Bytes>& parts) {
    std::vector<const void*> list;
    for (const Bytes& part : parts) list.push_back(part.data());
    return list;
  }
  std::vector<Bytes> parts_;
  std::vector<Bytes> results_;
};

using Action = std::function<void(Channel&, Scratch&)>;

struct Case {
  std::string title;
  Action one;                      // what the odd rank calls
  Action other;                    // what the others call
  std::vector<std::string> words;  // that the message must have
};

Action all_reduce(std::size_t count, DType dtype, ReduceOp op, CallTag tag = {}) {
  return
      [=](Channel& channel, Scratch& scratch) { channel.all_reduce(scratch.data(), count, dtype, op, with_tag(tag)); };
}
CallOptions of_parts(const std::vector<std::int64_t>& lengths) {
  CallOptions options = guarded();
  options.parts = parts_of_lengths(lengths);
  return options;
}
Action all_reduce_of_parts(const std::vector<std::int64_t>& lengths) {
  return [=](Channel& channel, Scratch& scratch) {
    channel.all_reduce(scratch.data(), 12, DType::f32, ReduceOp::sum(), of_parts(lengths));
  };
}
Action broadcast(std::size_t count, DType dtype, int root) {
  return [=](Channel& channel, Scratch& scratch) { channel.broadcast(scratch.data(), count, dtype, root, guarded()); };
}
Action barrier() {
  return [](Channel& channel, Scratch&) { channel.barrier(guarded()); };
}
Action barrier_of_parts(const std::vector<std::int64_t>& lengths) {
  return [=](Channel& channel, Scratch&) { channel.barrier(of_parts(lengths)); };
}
Action all_gather(std::size_t count) {
  return [=](Channel& channel, Scratch& scratch) {
    channel.all_gather(scratch.data(), scratch.outputs(), count, DType::f32, guarded());
  };
}
Action reduce(int root) {
  return [=](Channel& channel, Scratch& scratch) {
    channel.reduce(scratch.data(), scratch.result(), 10, DType::f32, ReduceOp::sum(), root, guarded());
  };
}
Action gather(int root) {
  return [=](Channel& channel, Scratch& scratch) {
    const std::vector<void*> outputs = channel.rank() == root ? scratch.outputs() : std::vector<void*>{};
    channel.gather(scratch.data(), outputs, 10, DType::f32, root, guarded());
  };
}
Action scatter(int root, std::size_t count) {
  return [=](Channel& channel, Scratch& scratch) {
    const std::vector<const void*> inputs = channel.rank() == root ? scratch.inputs() : std::vector<const void*>{};
    channel.scatter(inputs, scratch.result(), count, DType::f32, root, guarded());
  };
}
Action reduce_scatter(std::size_t count) {
  return [=](Channel& channel, Scratch& scratch) {
    channel.reduce_scatter(scratch.inputs(), scratch.result(), count, DType::f32, ReduceOp::sum(), guarded());
  };
}
Action allocate(std::size_t bytes) {
  return [=](Channel& channel, Scratch&) { channel.allocate(bytes, guarded()); };
}
Action duplicate() {
  return [](Channel& channel, Scratch&) { channel.duplicate(guarded()); };
}

std::vector<Case> cases() {
  const ReduceOp sum = ReduceOp::sum();
  return {
      {"other collective", all_reduce(10, DType::f32, sum), broadcast(10, DType::f32, 0), {"all_reduce", "broadcast"}},
      {"collective against barrier", all_reduce(10, DType::f32, sum), barrier(), {"all_reduce", "barrier"}},
      {"large collective against barrier", all_reduce(25'000, DType::f32, sum), barrier(), {"all_reduce", "barrier"}},
      {"other count", all_reduce(10, DType::f32, sum), all_reduce(11, DType::f32, sum), {"10", "11"}},
      {"other large count",
       all_reduce(20'000, DType::f32, sum),
       all_reduce(25'000, DType::f32, sum),
       {"20000", "25000"}},
      {"count 0 against 1", all_reduce(0, DType::f32, sum), all_reduce(1, DType::f32, sum), {"all_reduce"}},
      {"other dtype of the same size",
       all_reduce(10, DType::f32, sum),
       all_reduce(10, DType::i32, sum),
       {"f32", "i32"}},
      {"other op", all_reduce(10, DType::f32, sum), all_reduce(10, DType::f32, ReduceOp::max()), {"sum", "max"}},
      {"other factor",
       all_reduce(10, DType::f32, ReduceOp::premul_sum(0.5)),
       all_reduce(10, DType::f32, ReduceOp::premul_sum(0.25)),
       {"0.5", "0.25"}},
      {"other iteration",
       all_reduce(10, DType::f32, sum, {.iteration = 5, .bucket = 1, .stage = 0}),
       all_reduce(10, DType::f32, sum, {.iteration = 6, .bucket = 1, .stage = 0}),
       {"5", "6"}},
      {"other bucket",
       all_reduce(10, DType::f32, sum, {.iteration = 5, .bucket = 17, .stage = 0}),
       all_reduce(10, DType::f32, sum, {.iteration = 5, .bucket = 18, .stage = 0}),
       {"17", "18"}},
      {"other stage",
       all_reduce(10, DType::f32, sum, {.iteration = 5, .bucket = 1, .stage = 0}),
       all_reduce(10, DType::f32, sum, {.iteration = 5, .bucket = 1, .stage = 3}),
       {"3"}},
      {"other hook",
       all_reduce(10, DType::f32, sum, {.iteration = 5, .bucket = 1, .stage = 0, .hook = 1}),
       all_reduce(10, DType::f32, sum, {.iteration = 5, .bucket = 1, .stage = 0, .hook = 2}),
       {"after 1 replaced", "after 2 replaced"}},
      {"one thing or several of the same count",
       all_reduce(12, DType::f32, sum),
       all_reduce_of_parts({4, 8}),
       {"all_reduce(12 f32, sum)", "all_reduce(12 f32, sum, 2 tensors of sizes "}},
      {"other parts of the same count",
       all_reduce_of_parts({8, 4}),
       all_reduce_of_parts({4, 8}),
       {"2 tensors of sizes "}},
      {"other parts of a barrier", barrier_of_parts({1, 2, 3}), barrier_of_parts({6}), {"barrier(3 tensors of sizes "}},
      {"other root of a broadcast", broadcast(10, DType::f32, 0), broadcast(10, DType::f32, 1), {"0", "1"}},
      {"other large count of a broadcast",
       broadcast(5'000, DType::f32, 0),
       broadcast(25'000, DType::f32, 0),
       {"5000", "25000"}},
      {"other root of a reduce", reduce(0), reduce(1), {"reduce"}},
      {"other root of a gather", gather(1), gather(0), {"gather"}},
      {"other root of a scatter", scatter(1, 10), scatter(0, 10), {"scatter"}},
      {"other count of a scatter", scatter(0, 10), scatter(0, 12), {"10", "12"}},
      {"other large count of a scatter", scatter(0, 25'000), scatter(0, 7'000), {"25000", "7000"}},
      {"other count of an all_gather", all_gather(10), all_gather(12), {"10", "12"}},
      {"reduce_scatter against all_gather", reduce_scatter(10), all_gather(10), {"reduce_scatter", "all_gather"}},
      {"other size to allocate", allocate(4096), allocate(8192), {"4096", "8192"}},
      {"duplicate against barrier", duplicate(), barrier(), {"dup", "barrier"}},
  };
}

TEST_P(Mismatch, AllRanksLearnWhoCalledWhat) {
  const std::vector<Case> all = cases();
  run_world_unjoined(world(), [&](RankContext& context) {
    int generation = 0;
    for (const Case& one : all) {
      // The odd rank is another each time.
      const int odd = generation % context.size();
      SCOPED_TRACE(concat(one.title, ", odd rank ", odd));
      context.join(generation++);
      Scratch scratch(context.size());
      Channel& channel = context.channel();
      std::int64_t before = 1;
      channel.all_reduce(&before, 1, DType::i64, ReduceOp::sum(), guarded());
      EXPECT_EQ(before, context.size());

      const Action& mine = context.rank() == odd ? one.one : one.other;
      const std::string text = expect_throw<MismatchError>([&] { mine(channel, scratch); });
      for (const std::string& word : one.words) expect_contains(text, word);
      expect_contains(text, concat(odd));
      scratch.expect_unchanged();

      // The channel is at its end, with the same words.
      EXPECT_EQ(expect_throw<MismatchError>([&] { channel.barrier(guarded()); }), text);
      EXPECT_EQ(expect_throw<MismatchError>([&] { channel.check(); }), text);
      context.meet(concat("case", generation));
    }
  });
}

TEST_P(Mismatch, AllToAllCountsThatDoNotFit) {
  run([](RankContext& context) {
    // Rank 0 sends 5 elements to rank 1, which expects 6; all else fits.
    const auto ranks = static_cast<std::size_t>(context.size());
    std::vector<std::vector<float>> in(ranks, std::vector<float>(8, 1.0F)), out(ranks, std::vector<float>(8, 2.0F));
    std::vector<ConstSlice> inputs;
    std::vector<Slice> outputs;
    for (std::size_t r = 0; r < ranks; ++r) {
      inputs.push_back({in[r].data(), context.rank() == 0 && r == 1 ? 5U : 4U});
      outputs.push_back({out[r].data(), context.rank() == 1 && r == 0 ? 6U : 4U});
    }
    const std::string text =
        expect_throw<MismatchError>([&] { context.channel().all_to_all(inputs, outputs, DType::f32, guarded()); });
    expect_contains(text, "5");
    expect_contains(text, "6");
    // The message that does not fit is not written beyond what was expected, whatever else has moved.
    for (const auto& part : out) {
      for (std::size_t i = 6; i < 8; ++i) EXPECT_EQ(part[i], 2.0F);
    }
    expect_throw<MismatchError>([&] { context.channel().check(); });
    context.meet("end");
  });
}

TEST_P(Mismatch, ADuplicateGoesOnWhenItsOriginalEnds) {
  run([](RankContext& context) {
    const std::unique_ptr<Channel> duplicate = context.channel().duplicate(guarded());
    float value = 1;
    expect_throw<MismatchError>([&] {
      const std::size_t count = context.rank() == 0 ? 1 : 0;
      context.channel().all_reduce(&value, count, DType::f32, ReduceOp::sum(), guarded());
    });
    duplicate->all_reduce(&value, 1, DType::f32, ReduceOp::sum(), guarded());
    EXPECT_EQ(value, static_cast<float>(context.size()));
  });
}

}  // namespace
}  // namespace gradwire::testing
