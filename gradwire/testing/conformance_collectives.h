// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The collectives against oracles. Each function is the body of one test of the conformance suite, on one rank.
// Internal to the suite.
#pragma once

#include <algorithm>

#include "gradwire/base/error.h"
#include "gradwire/testing/conformance_traits.h"
#include "gradwire/testing/conformance_values.h"

namespace gradwire::testing::conformance {

inline void broadcast(ProcessGroup& group, const Capabilities& can) {
  for (int root = 0; root < group.size(); ++root) {
    for_each_shape(can.dtypes, [&](at::ScalarType type, std::int64_t count, bool in_order) {
      const at::Tensor tensor = make(group.rank(), count, type, in_order);
      EXPECT_TRUE(group.broadcast({tensor}, with_root<BroadcastOptions>(root))->wait());
      expect_same(tensor, values(root, count, type), "broadcast");
    });
  }
}

inline void all_reduce(ProcessGroup& group, const Capabilities& can) {
  for_each_shape(can.dtypes, [&](at::ScalarType type, std::int64_t count, bool in_order) {
    const at::Tensor tensor = make(group.rank(), count, type, in_order);
    const auto work = group.all_reduce({tensor});
    EXPECT_TRUE(work->wait());
    expect_same(tensor, sum_over_ranks(group.size(), count, type), "all_reduce");
    // The future holds the tensors of the call.
    const auto held = work->future()->value().toTensorVector();
    ASSERT_EQ(held.size(), 1U);
    EXPECT_TRUE(held[0].is_same(tensor));
  });
}

inline void all_reduce_operations(ProcessGroup& group, const Capabilities& can) {
  const auto reduced = [&](ReduceOp op, at::ScalarType type) {
    const at::Tensor tensor = values(group.rank(), 100, type);
    AllReduceOptions options;
    options.op = op;
    options.async = false;
    group.all_reduce({tensor}, options)->wait();
    return tensor;
  };
  if (!can.every_operation) {
    EXPECT_THROW(reduced(ReduceOp::max(), at::kLong), UnsupportedError);
    return;
  }
  Tensors all;
  for (int rank = 0; rank < group.size(); ++rank) all.push_back(values(rank, 100, at::kLong));
  const at::Tensor stacked = at::stack(all), wide = stacked.to(at::kDouble);
  expect_same(reduced(ReduceOp::max(), at::kLong), stacked.amax(0), "max");
  expect_same(reduced(ReduceOp::min(), at::kLong), stacked.amin(0), "min");
  expect_same(reduced(ReduceOp::product(), at::kLong), stacked.prod(0), "product");
  expect_same(reduced(ReduceOp::avg(), at::kDouble), wide.sum(0).div(group.size()), "average");
  at::Tensor exclusive = all[0];
  for (std::size_t rank = 1; rank < all.size(); ++rank) exclusive = exclusive.bitwise_xor(all[rank]);
  expect_same(reduced(ReduceOp::bxor(), at::kLong), exclusive, "bitwise exclusive or");
  expect_same(reduced(ReduceOp::premul_sum(0.5), at::kDouble), wide.mul(0.5).sum(0), "premultiplied sum");
}

inline void several_tensors(ProcessGroup& group, const Capabilities& can) {
  if (!can.several_tensors) return;
  for (const std::int64_t count : {3, 40000}) {
    const Tensors tensors{make(group.rank(), count, at::kFloat, true), make(group.rank(), count + 1, at::kFloat, false),
                          make(group.rank(), 2, at::kFloat, true).view({2, 1})};
    group.all_reduce_coalesced(tensors)->wait();
    expect_same(tensors[0], sum_over_ranks(group.size(), count, at::kFloat), "the first tensor");
    expect_same(tensors[1], sum_over_ranks(group.size(), count + 1, at::kFloat), "the second tensor");
    expect_same(tensors[2], sum_over_ranks(group.size(), 2, at::kFloat).view({2, 1}), "the third tensor");
  }
  const Tensors mixed{make(group.rank(), 5, at::kFloat, true), make(group.rank(), 5, at::kLong, true)};
  const int root = group.size() - 1;
  group.broadcast(mixed, with_root<BroadcastOptions>(root))->wait();
  expect_same(mixed[0], values(root, 5, at::kFloat), "a tensor of floats");
  expect_same(mixed[1], values(root, 5, at::kLong), "a tensor of integers");
}

inline void reduce(ProcessGroup& group, const Capabilities& can) {
  for (int root = 0; root < group.size(); ++root) {
    for (const bool in_order : {true, false}) {
      const at::Tensor tensor = make(group.rank(), 33, at::kDouble, in_order);
      const auto call = [&] { return group.reduce({tensor}, with_root<ReduceOptions>(root)); };
      if (!can.reduce) {
        EXPECT_THROW(call(), UnsupportedError);
        continue;
      }
      call()->wait();
      expect_same(
          tensor,
          group.rank() == root ? sum_over_ranks(group.size(), 33, at::kDouble) : values(group.rank(), 33, at::kDouble),
          "reduce");
    }
  }
}

inline void all_gather(ProcessGroup& group, const Capabilities& can) {
  for_each_shape(can.dtypes, [&](at::ScalarType type, std::int64_t count, bool in_order) {
    const at::Tensor input = make(group.rank(), count, type, in_order);
    Tensors outputs, expected;
    for (int rank = 0; rank < group.size(); ++rank) {
      outputs.push_back(blank(count, type, in_order));
      expected.push_back(values(rank, count, type));
    }
    group.all_gather({outputs}, {input})->wait();
    for (std::size_t rank = 0; rank < outputs.size(); ++rank) expect_same(outputs[rank], expected[rank], "all_gather");
    const at::Tensor whole = blank(count * group.size(), type, in_order);
    group.all_gather_into_tensor(whole, input)->wait();
    expect_same(whole, at::cat(expected), "all_gather_into_tensor");
  });
}

// Returns a list that holds `tensors` on the root, and an empty list on other ranks.
inline std::vector<Tensors> on_root(bool is_root, const Tensors& tensors) {
  return is_root ? std::vector<Tensors>{tensors} : std::vector<Tensors>{};
}

inline void gather_and_scatter(ProcessGroup& group, const Capabilities& can) {
  for (int root = 0; root < group.size(); ++root) {
    for (const bool in_order : {true, false}) {
      const bool is_root = group.rank() == root;
      const at::Tensor input = make(group.rank(), 19, at::kFloat, in_order), output = blank(19, at::kFloat, in_order);
      Tensors all;
      for (int rank = 0; rank < group.size(); ++rank) {
        all.push_back(can.gather ? blank(19, at::kFloat, in_order) : make(rank, 19, at::kFloat, in_order));
      }
      const auto gather = [&] { return group.gather(on_root(is_root, all), {input}, with_root<GatherOptions>(root)); };
      const auto scatter = [&] {
        return group.scatter({output}, on_root(is_root, all), with_root<ScatterOptions>(root));
      };
      if (can.gather) {
        gather()->wait();
        for (int rank = 0; is_root && rank < group.size(); ++rank)
          expect_same(all[static_cast<std::size_t>(rank)], values(rank, 19, at::kFloat), "gather");
      } else {
        EXPECT_THROW(gather(), UnsupportedError);
      }
      if (can.scatter) {
        scatter()->wait();
        expect_same(output, values(group.rank(), 19, at::kFloat), "scatter");
      } else {
        EXPECT_THROW(scatter(), UnsupportedError);
      }
    }
  }
}

inline void reduce_scatter(ProcessGroup& group, const Capabilities& can) {
  for (const bool in_order : {true, false}) {
    for (const std::int64_t count : {0, 1, 1000}) {
      const std::int64_t whole_count = count * group.size();
      const at::Tensor whole = make(group.rank(), whole_count, at::kFloat, in_order);
      const at::Tensor output = blank(count, at::kFloat, in_order);
      const at::Tensor expected =
          sum_over_ranks(group.size(), whole_count, at::kFloat).narrow(0, group.rank() * count, count);
      if (!can.reduce_scatter) {
        EXPECT_THROW(group.reduce_scatter_tensor(output, whole), UnsupportedError);
        continue;
      }
      group.reduce_scatter_tensor(output, whole)->wait();
      expect_same(output, expected, "reduce_scatter_tensor");
      Tensors parts;
      for (int rank = 0; rank < group.size(); ++rank) parts.push_back(whole.narrow(0, rank * count, count));
      output.fill_(-1);
      group.reduce_scatter({output}, {parts})->wait();
      expect_same(output, expected, "reduce_scatter");
    }
  }
}

inline void all_to_all(ProcessGroup& group, const Capabilities& can) {
  const int size = group.size(), rank = group.rank();
  // Rank r sends r + s + 1 elements of the value 10 r + s to rank s.
  const auto part = [](int from, int to) { return at::full({from + to + 1}, 10 * from + to, at::kFloat); };
  Tensors inputs, outputs, expected;
  std::vector<std::int64_t> splits;
  for (int peer = 0; peer < size; ++peer) {
    inputs.push_back(part(rank, peer));
    expected.push_back(part(peer, rank));
    outputs.push_back(at::zeros_like(expected.back()));
    splits.push_back(rank + peer + 1);
  }
  if (!can.all_to_all) {
    EXPECT_THROW(group.all_to_all(outputs, inputs), UnsupportedError);
    EXPECT_THROW(group.all_to_all_single(at::zeros({size}), at::zeros({size})), UnsupportedError);
    return;
  }
  group.all_to_all(outputs, inputs)->wait();
  for (std::size_t peer = 0; peer < outputs.size(); ++peer) expect_same(outputs[peer], expected[peer], "all_to_all");
  const at::Tensor output = at::zeros_like(at::cat(expected));
  group.all_to_all_single(output, at::cat(inputs), splits, splits)->wait();
  expect_same(output, at::cat(expected), "all_to_all_single with uneven splits");

  const auto even = [size](int of) { return at::arange(size * 2 * 3, at::kInt).add(100 * of).view({size * 2, 3}); };
  const at::Tensor turned = at::zeros_like(even(rank));
  group.all_to_all_single(turned, even(rank))->wait();
  for (int peer = 0; peer < size; ++peer)
    expect_same(turned.narrow(0, 2 * peer, 2), even(peer).narrow(0, 2 * rank, 2), "all_to_all_single");
}

inline void coalesced(ProcessGroup& group, const Capabilities& can) {
  const int size = group.size();
  const Tensors inputs{values(group.rank(), 4, at::kFloat), values(group.rank() + 1, 9, at::kFloat)};
  const Tensors outputs{at::zeros({4 * size}), at::zeros({9 * size})}, parts{at::zeros({4}), at::zeros({9})};
  const auto work = group.all_gather_into_tensor_coalesced(outputs, inputs);
  work->wait();
  EXPECT_EQ(work->result().size(), 2U);
  Tensors expected;
  for (int rank = 0; rank < size; ++rank) expected.push_back(values(rank + 1, 9, at::kFloat));
  expect_same(outputs[1], at::cat(expected), "all_gather_into_tensor_coalesced");
  if (!can.reduce_scatter) return;
  group.reduce_scatter_tensor_coalesced(parts, outputs)->wait();
  expect_same(parts[0], values(group.rank(), 4, at::kFloat).mul(size), "reduce_scatter_tensor_coalesced");
  expect_same(parts[1], values(group.rank() + 1, 9, at::kFloat).mul(size), "reduce_scatter_tensor_coalesced");
}

inline void autograd_does_not_see(ProcessGroup& group) {
  const at::Tensor leaf = scattered(values(group.rank(), 6, at::kFloat)).requires_grad_();
  group.all_reduce({leaf})->wait();
  EXPECT_TRUE(leaf.is_leaf());
  expect_same(leaf.detach(), sum_over_ranks(group.size(), 6, at::kFloat),
              "all_reduce of a tensor that requires a gradient");
}

// Each call uses the result of the previous call, so another order gives other numbers.
inline void order_of_calls(ProcessGroup& group, const Capabilities& can) {
  if (!can.calls_in_order) return;
  const at::Tensor tensor = at::ones({64}, at::kLong), root = at::full({64}, group.rank(), at::kLong);
  std::vector<std::shared_ptr<Work>> works;
  std::int64_t expected = 1;
  for (int i = 0; i < 20 && expected < (1 << 20); ++i) {
    AllReduceOptions options;
    options.async = i % 3 != 0;
    works.push_back(group.all_reduce({tensor}, options));
    works.push_back(group.broadcast({root}, with_root<BroadcastOptions>(i % group.size())));
    expected *= group.size();
  }
  for (const auto& work : works) EXPECT_TRUE(work->wait());
  expect_same(tensor, at::full({64}, expected, at::kLong), "a chain of all_reduce");
  expect_same(root, at::zeros({64}, at::kLong), "a chain of broadcast, of which the first counts");
}

inline void allocated_memory(ProcessGroup& group) {
  const at::Tensor tensor = group.allocate(1000, at::kFloat);
  EXPECT_EQ(tensor.numel(), 1000);
  EXPECT_EQ(tensor.count_nonzero().item<std::int64_t>(), 0);
  EXPECT_EQ(group.allocate(0, at::kFloat).numel(), 0);
  tensor.copy_(values(group.rank(), 1000, at::kFloat));
  group.all_reduce({tensor})->wait();
  expect_same(tensor, sum_over_ranks(group.size(), 1000, at::kFloat), "all_reduce in memory of the group");
}

}  // namespace gradwire::testing::conformance
