// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Collectives of tensors against oracles, over every backend that this machine has.
#include "gradwire/process_group/process_group.h"

#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <tuple>

#include "gradwire/base/error.h"
#include "gradwire/process_group/init.h"
#include "tests/support/named_group.h"
#include "tests/support/ranks.h"

namespace gradwire {
namespace {

using test_support::engine_of;
using test_support::make_named_group;
using test_support::run_ranks;

constexpr at::ScalarType kTypes[] = {at::kHalf, at::kBFloat16,     at::kFloat,        at::kDouble,
                                     at::kChar, at::kByte,         at::kInt,          at::kLong,
                                     at::kBool, at::kComplexFloat, at::kComplexDouble};

// Small whole numbers, other ones on every rank: exact in every type and order of summation.
at::Tensor values(int rank, std::int64_t count, at::ScalarType type) {
  return at::arange(count, at::kLong).add(rank * 3 + 1).remainder(5).to(type);
}

// The same values with strides that are not in order.
at::Tensor scattered(const at::Tensor& dense) {
  at::Tensor wide = at::zeros({dense.numel(), 2}, dense.options());
  at::Tensor column = wide.select(1, 1);
  column.copy_(dense.reshape({-1}));
  return column;
}

std::string text(const at::Tensor& tensor) {
  std::ostringstream out;
  out << tensor.scalar_type() << tensor.sizes();
  return out.str();
}

#define EXPECT_SAME(actual, expected) \
  EXPECT_TRUE(at::equal((actual), (expected))) << text(actual) << " against " << text(expected)

at::Tensor sum_over_ranks(int world, std::int64_t count, at::ScalarType type) {
  at::Tensor sum = values(0, count, type);
  for (int rank = 1; rank < world; ++rank) {
    sum = type == at::kBool ? sum.logical_or(values(rank, count, type)) : sum.add(values(rank, count, type));
  }
  return sum;
}

class Collectives : public ::testing::TestWithParam<std::tuple<std::string, int>> {
 protected:
  std::string backend() const { return std::get<0>(GetParam()); }
  int world() const { return std::get<1>(GetParam()); }

  // Runs `body` on every rank with a group.
  void on_ranks(const std::function<void(ProcessGroup& group)>& body) {
    run_ranks(engine_of(backend()), world(), [&](int rank, const std::shared_ptr<Store>& store) {
      if (engine_of(backend()) != "threads") at::set_num_threads(1);
      const auto group = make_named_group(backend(), store, rank, world(), std::chrono::minutes(2));
      ASSERT_EQ(group->rank(), rank);
      ASSERT_EQ(group->size(), world());
      ASSERT_EQ(group->name(), backend() == "round_trip" ? "gradwire" : backend());
      body(*group);
      group->barrier()->wait();
    });
  }

  // Sizes, types and strides of one element-wise collective.
  template <class Body>
  static void for_each_shape(const Body& body) {
    for (const at::ScalarType type : kTypes) {
      for (const std::int64_t count : {0, 1, 17, 5000}) {
        for (const bool in_order : {true, false}) body(type, count, in_order);
      }
    }
  }

  static at::Tensor make(int rank, std::int64_t count, at::ScalarType type, bool in_order) {
    const at::Tensor dense = values(rank, count, type);
    return in_order ? dense : scattered(dense);
  }
};

TEST_P(Collectives, AllReduceIsTheSumOfAllRanks) {
  on_ranks([&](ProcessGroup& group) {
    for_each_shape([&](at::ScalarType type, std::int64_t count, bool in_order) {
      at::Tensor tensor = make(group.rank(), count, type, in_order);
      const auto work = group.all_reduce({tensor});
      EXPECT_TRUE(work->wait());
      EXPECT_SAME(tensor, sum_over_ranks(group.size(), count, type));
      ASSERT_EQ(work->result().size(), 1U);
      EXPECT_TRUE(work->result()[0].is_same(tensor));
    });
  });
}

TEST_P(Collectives, AllReduceKnowsItsOperations) {
  on_ranks([&](ProcessGroup& group) {
    const int n = group.size();
    const auto reduced = [&](ReduceOp op, at::ScalarType type) {
      at::Tensor tensor = values(group.rank(), 100, type);
      AllReduceOptions options;
      options.op = op;
      options.async = false;
      EXPECT_TRUE(group.all_reduce({tensor}, options)->is_success());
      return tensor;
    };
    std::vector<at::Tensor> all;
    for (int rank = 0; rank < n; ++rank) all.push_back(values(rank, 100, at::kLong));
    const at::Tensor stacked = at::stack(all);
    EXPECT_SAME(reduced(ReduceOp::max(), at::kLong), stacked.amax(0));
    EXPECT_SAME(reduced(ReduceOp::min(), at::kLong), stacked.amin(0));
    EXPECT_SAME(reduced(ReduceOp::product(), at::kLong), stacked.prod(0));
    at::Tensor exclusive = all[0];
    for (int rank = 1; rank < n; ++rank) exclusive = exclusive.bitwise_xor(all[static_cast<std::size_t>(rank)]);
    EXPECT_SAME(reduced(ReduceOp::bxor(), at::kLong), exclusive);
    EXPECT_SAME(reduced(ReduceOp::avg(), at::kDouble), stacked.to(at::kDouble).sum(0).div(n));
    EXPECT_SAME(reduced(ReduceOp::premul_sum(0.5), at::kDouble), stacked.to(at::kDouble).mul(0.5).sum(0));
  });
}

// Twelve floats a rank. What all ranks send together does not depend on who is the root.
TEST_P(Collectives, PayloadIsWhatTheTextbookAlgorithmsSend) {
  on_ranks([&](ProcessGroup& group) {
    const auto ranks = static_cast<std::uint64_t>(group.size());
    const auto payload_of = [&](const auto& call) {
      const std::uint64_t before = group.payload_bytes();
      call()->wait();
      return group.payload_bytes() - before;
    };
    at::Tensor one = at::ones({12});
    at::Tensor all = at::ones({12 * group.size()});
    const std::uint64_t others = ranks - 1;
    EXPECT_EQ(payload_of([&] { return group.all_reduce({one}); }), 2 * others * 48 / ranks);
    EXPECT_EQ(payload_of([&] { return group.all_gather_into_tensor(all, one); }), others * 48);
    EXPECT_EQ(payload_of([&] { return group.reduce_scatter_tensor(one, all); }), others * 48);
    EXPECT_EQ(payload_of([&] { return group.all_to_all_single(all, at::ones({12 * group.size()})); }), others * 48);
    EXPECT_EQ(payload_of([&] { return group.broadcast({one}); }), group.rank() == 0 ? others * 48 : 0);
    EXPECT_EQ(payload_of([&] { return group.reduce({one}); }), group.rank() == 0 ? 0U : 48U);
    EXPECT_EQ(payload_of([&] { return group.barrier(); }), 0U);
  });
}

TEST_P(Collectives, SeveralTensorsInOneCall) {
  on_ranks([&](ProcessGroup& group) {
    // Small ones travel together, large and mixed ones one by one.
    for (const std::int64_t count : {3, 40000}) {
      Tensors tensors{make(group.rank(), count, at::kFloat, true), make(group.rank(), count + 1, at::kFloat, false),
                      make(group.rank(), 2, at::kFloat, true).view({2, 1})};
      group.all_reduce_coalesced(tensors)->wait();
      EXPECT_SAME(tensors[0], sum_over_ranks(group.size(), count, at::kFloat));
      EXPECT_SAME(tensors[1], sum_over_ranks(group.size(), count + 1, at::kFloat));
      EXPECT_SAME(tensors[2], sum_over_ranks(group.size(), 2, at::kFloat).view({2, 1}));
    }
    Tensors mixed{make(group.rank(), 5, at::kFloat, true), make(group.rank(), 5, at::kLong, true)};
    BroadcastOptions options;
    options.root = group.size() - 1;
    group.broadcast(mixed, options)->wait();
    EXPECT_SAME(mixed[0], values(options.root, 5, at::kFloat));
    EXPECT_SAME(mixed[1], values(options.root, 5, at::kLong));
  });
}

TEST_P(Collectives, BroadcastBringsTheRootsValues) {
  on_ranks([&](ProcessGroup& group) {
    for (int root = 0; root < group.size(); ++root) {
      for_each_shape([&](at::ScalarType type, std::int64_t count, bool in_order) {
        at::Tensor tensor = make(group.rank(), count, type, in_order);
        BroadcastOptions options;
        options.root = root;
        group.broadcast({tensor}, options)->wait();
        EXPECT_SAME(tensor, values(root, count, type));
      });
    }
    // Types that are not reduced travel too.
    at::Tensor shorts = at::full({7}, group.rank() + 5, at::kShort);
    group.broadcast({shorts})->wait();
    EXPECT_SAME(shorts, at::full({7}, 5, at::kShort));
  });
}

TEST_P(Collectives, ReduceReachesTheRootAlone) {
  on_ranks([&](ProcessGroup& group) {
    for (int root = 0; root < group.size(); ++root) {
      for (const bool in_order : {true, false}) {
        at::Tensor tensor = make(group.rank(), 33, at::kDouble, in_order);
        ReduceOptions options;
        options.root = root;
        group.reduce({tensor}, options)->wait();
        const bool here = group.rank() == root;
        EXPECT_SAME(tensor,
                    here ? sum_over_ranks(group.size(), 33, at::kDouble) : values(group.rank(), 33, at::kDouble));
      }
    }
  });
}

TEST_P(Collectives, AllGatherBringsEveryRanksValues) {
  on_ranks([&](ProcessGroup& group) {
    for_each_shape([&](at::ScalarType type, std::int64_t count, bool in_order) {
      const at::Tensor input = make(group.rank(), count, type, in_order);
      Tensors outputs;
      std::vector<at::Tensor> expected;
      for (int rank = 0; rank < group.size(); ++rank) {
        outputs.push_back(make(99, count, type, in_order));
        expected.push_back(values(rank, count, type));
      }
      const auto work = group.all_gather({outputs}, {input});
      work->wait();
      for (std::size_t rank = 0; rank < outputs.size(); ++rank) EXPECT_SAME(outputs[rank], expected[rank]);
      EXPECT_EQ(work->future()->value().toListRef().size(), 1U);  // a list of lists
      EXPECT_EQ(work->result().size(), outputs.size());

      at::Tensor whole = make(99, count * group.size(), type, in_order);
      group.all_gather_into_tensor(whole, input)->wait();
      EXPECT_SAME(whole, at::cat(expected));
    });
  });
}

TEST_P(Collectives, GatherAndScatterAreInverse) {
  on_ranks([&](ProcessGroup& group) {
    for (int root = 0; root < group.size(); ++root) {
      for (const bool in_order : {true, false}) {
        const at::Tensor input = make(group.rank(), 19, at::kFloat, in_order);
        Tensors gathered;
        if (group.rank() == root) {
          for (int rank = 0; rank < group.size(); ++rank) gathered.push_back(make(99, 19, at::kFloat, in_order));
        }
        GatherOptions to_root;
        to_root.root = root;
        group.gather(gathered.empty() ? std::vector<Tensors>() : std::vector<Tensors>{gathered}, {input}, to_root)
            ->wait();
        for (std::size_t rank = 0; rank < gathered.size(); ++rank)
          EXPECT_SAME(gathered[rank], values(static_cast<int>(rank), 19, at::kFloat));

        at::Tensor output = make(99, 19, at::kFloat, in_order);
        ScatterOptions from_root;
        from_root.root = root;
        group.scatter({output}, gathered.empty() ? std::vector<Tensors>() : std::vector<Tensors>{gathered}, from_root)
            ->wait();
        EXPECT_SAME(output, values(group.rank(), 19, at::kFloat));
      }
    }
  });
}

TEST_P(Collectives, ReduceScatterIsAPartOfTheSum) {
  on_ranks([&](ProcessGroup& group) {
    for (const bool in_order : {true, false}) {
      for (const std::int64_t count : {0, 1, 1000}) {
        const std::int64_t whole_count = count * group.size();
        const at::Tensor whole = make(group.rank(), whole_count, at::kFloat, in_order);
        const at::Tensor expected =
            sum_over_ranks(group.size(), whole_count, at::kFloat).narrow(0, group.rank() * count, count);
        at::Tensor output = make(99, count, at::kFloat, in_order);
        group.reduce_scatter_tensor(output, whole)->wait();
        EXPECT_SAME(output, expected);

        Tensors parts;
        for (int rank = 0; rank < group.size(); ++rank) parts.push_back(whole.narrow(0, rank * count, count));
        output.fill_(-1);
        group.reduce_scatter({output}, {parts})->wait();
        EXPECT_SAME(output, expected);
      }
    }
  });
}

TEST_P(Collectives, AllToAllTransposes) {
  on_ranks([&](ProcessGroup& group) {
    const int n = group.size();
    // Rank r sends r + s + 1 elements of the value 10 r + s to rank s.
    const auto part = [](int from, int to) { return at::full({from + to + 1}, 10 * from + to, at::kFloat); };
    Tensors inputs;
    Tensors outputs;
    Tensors expected;
    std::vector<std::int64_t> splits;
    for (int peer = 0; peer < n; ++peer) {
      inputs.push_back(part(group.rank(), peer));
      expected.push_back(part(peer, group.rank()));
      outputs.push_back(at::zeros_like(expected.back()));
      splits.push_back(group.rank() + peer + 1);
    }
    group.all_to_all(outputs, inputs)->wait();
    for (std::size_t peer = 0; peer < outputs.size(); ++peer) EXPECT_SAME(outputs[peer], expected[peer]);

    at::Tensor output = at::zeros_like(at::cat(expected));
    group.all_to_all_single(output, at::cat(inputs), splits, splits)->wait();
    EXPECT_SAME(output, at::cat(expected));

    const at::Tensor even = at::arange(n * 2 * 3, at::kShort).add(100 * group.rank()).view({n * 2, 3});
    at::Tensor turned = at::zeros_like(even);
    group.all_to_all_single(turned, even)->wait();
    for (int peer = 0; peer < n; ++peer) {
      const at::Tensor theirs = at::arange(n * 2 * 3, at::kShort).add(100 * peer).view({n * 2, 3});
      EXPECT_SAME(turned.narrow(0, 2 * peer, 2), theirs.narrow(0, 2 * group.rank(), 2));
    }
  });
}

TEST_P(Collectives, CoalescedFormsAreThePlainOnes) {
  on_ranks([&](ProcessGroup& group) {
    const int n = group.size();
    const Tensors inputs{values(group.rank(), 4, at::kFloat), values(group.rank() + 1, 9, at::kFloat)};
    Tensors outputs{at::zeros({4 * n}), at::zeros({9 * n})};
    const auto work = group.all_gather_into_tensor_coalesced(outputs, inputs);
    work->wait();
    EXPECT_EQ(work->result().size(), 2U);
    Tensors expected;
    for (int rank = 0; rank < n; ++rank) expected.push_back(values(rank + 1, 9, at::kFloat));
    EXPECT_SAME(outputs[1], at::cat(expected));

    Tensors parts{at::zeros({4}), at::zeros({9})};
    group.reduce_scatter_tensor_coalesced(parts, outputs)->wait();
    EXPECT_SAME(parts[0], values(group.rank(), 4, at::kFloat).mul(n));
    EXPECT_SAME(parts[1], values(group.rank() + 1, 9, at::kFloat).mul(n));
  });
}

TEST_P(Collectives, AutogradDoesNotSeeThem) {
  on_ranks([&](ProcessGroup& group) {
    at::Tensor leaf = scattered(values(group.rank(), 6, at::kFloat)).requires_grad_();
    group.all_reduce({leaf})->wait();
    EXPECT_TRUE(leaf.is_leaf());
    EXPECT_SAME(leaf.detach(), sum_over_ranks(group.size(), 6, at::kFloat));
  });
}

TEST_P(Collectives, MemoryFromAllocateIsZeroedAndOutlivesTheGroup) {
  at::Tensor kept;
  run_ranks(engine_of(backend()), world(), [&](int rank, const std::shared_ptr<Store>& store) {
    at::Tensor tensor;
    {
      const auto group = make_named_group(backend(), store, rank, world());
      tensor = group->allocate(1000, at::kBFloat16);
      EXPECT_EQ(tensor.numel(), 1000);
      EXPECT_EQ(tensor.count_nonzero().item<std::int64_t>(), 0);
      EXPECT_EQ(group->allocate(0, at::kFloat).numel(), 0);
      tensor.copy_(values(rank, 1000, at::kBFloat16));
      group->all_reduce({tensor})->wait();
      group->shutdown();
    }
    EXPECT_SAME(tensor, sum_over_ranks(world(), 1000, at::kBFloat16));
    tensor.fill_(1);
  });
}

TEST_P(Collectives, ManyAsynchronousCallsKeepTheirOrder) {
  on_ranks([&](ProcessGroup& group) {
    // Each call builds on the result of the one before, so another order gives other numbers.
    at::Tensor tensor = at::ones({64}, at::kLong);
    std::vector<std::shared_ptr<Work>> works;
    std::int64_t expected = 1;
    for (int i = 0; i < 20; ++i) {
      works.push_back(group.all_reduce({tensor}));
      expected *= group.size();
      AllReduceOptions max;
      max.op = ReduceOp::max();
      max.async = i % 3 != 0;
      works.push_back(group.all_reduce({tensor}, max));
      if (expected > (1 << 20)) break;
    }
    for (const auto& work : works) EXPECT_TRUE(work->wait());
    EXPECT_SAME(tensor, at::full({64}, expected, at::kLong));
  });
}

std::string name_of_case(const ::testing::TestParamInfo<Collectives::ParamType>& info) {
  return concat(std::get<0>(info.param), std::get<1>(info.param));
}

INSTANTIATE_TEST_SUITE_P(Threads, Collectives,
                         ::testing::Combine(::testing::Values("threads"), ::testing::Values(1, 2, 3, 5)), name_of_case);
INSTANTIATE_TEST_SUITE_P(RoundTrip, Collectives,
                         ::testing::Combine(::testing::Values("round_trip"), ::testing::Values(1, 3)), name_of_case);
INSTANTIATE_TEST_SUITE_P(Processes, Collectives,
                         ::testing::Combine(::testing::ValuesIn(test_support::process_backends()),
                                            ::testing::Values(1, 2, 3)),
                         name_of_case);

}  // namespace
}  // namespace gradwire
