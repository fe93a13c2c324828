// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Random programs of collectives. All ranks run the same program, and the right result of each call is known.
//
// A program makes a few groups from one group (duplicates, duplicates of duplicates, halves) and distributes them over
// one to three threads. Each thread makes calls on its groups: calls of every kind, dtype and root, on contiguous and
// other tensors, synchronous and asynchronous. Some calls use the tensor of an earlier call that may not have ended.
// Each rank draws for itself when it waits for a Work: at once, later, in another order, or only at the end. So the
// ranks progress differently. The seed and the number of ranks determine a program; the message of every failure names
// both.
#pragma once

#include <cstdint>
#include <functional>
#include <random>
#include <thread>
#include <utility>

#include "gradwire/testing/conformance_collectives.h"

namespace gradwire::testing {

// One program for groups with the given capabilities. Any number of ranks may run the same object at the same time.
class RandomProgram {
 public:
  // `seed`: which program, the same on all ranks. `can`: what the program may use.
  RandomProgram(std::uint64_t seed, const Capabilities& can) : seed_(seed), can_(can) {}

  // Collective: runs the program over `group`, on all ranks. A wrong result or an exception fails the test; an
  // exception also aborts the groups of its thread. Without a failure, `group` is usable afterwards.
  void run(const std::shared_ptr<ProcessGroup>& group) const {
    Random agreed(seed_);
    std::vector<std::vector<std::shared_ptr<ProcessGroup>>> threads(can_.duplicates ? 1 + agreed.below(3) : 1);
    threads[0].push_back(group);
    for (std::size_t i = 1; i < threads.size(); ++i) threads[i].push_back(group->dup());
    for (auto& groups : threads) {
      if (can_.duplicates && agreed.below(2) == 0) groups.push_back(groups[0]->dup());
      if (can_.splits && agreed.below(2) == 0) groups.push_back(groups[0]->split(groups[0]->rank() % 2));
    }
    std::vector<std::thread> others;
    for (std::size_t i = 1; i < threads.size(); ++i) {
      others.emplace_back([&, i] { run_thread(i, threads[i]); });
    }
    run_thread(0, threads[0]);
    for (std::thread& other : others) other.join();
  }

 private:
  using Group = std::shared_ptr<ProcessGroup>;

  // Random numbers that are the same on every machine.
  class Random {
   public:
    explicit Random(std::uint64_t seed) : engine_(seed) {}
    std::size_t below(std::size_t end) { return static_cast<std::size_t>(engine_() % end); }

   private:
    std::mt19937_64 engine_;
  };

  // A call that may not have ended, and the check of its result.
  struct Pending {
    std::shared_ptr<Work> work;
    std::function<void()> check;
  };

  // The properties of one call. All ranks agree on them; `async` alone is each rank's own choice.
  struct Call {
    std::size_t number;  // determines the values
    std::int64_t count;
    at::ScalarType type;
    bool in_order;
    ReduceOp op;
    int root;
    bool async;
  };

  // A tensor that several calls change one after the other, and its expected values on all ranks.
  struct Chain {
    at::Tensor mine;
    Tensors all;
  };

  void run_thread(std::size_t thread, const std::vector<Group>& groups) const {
    SCOPED_TRACE(concat("random program ", seed_, " on ", groups[0]->size(), " ranks, thread ", thread, ", rank ",
                        groups[0]->rank()));
    try {
      make_calls(thread, groups);
    } catch (const std::exception& error) {
      ADD_FAILURE() << error.what();
      for (const Group& group : groups) group->abort(error.what());
    }
  }

  void make_calls(std::size_t thread, const std::vector<Group>& groups) const {
    Random agreed(seed_ * 16 + thread + 1),
        own((seed_ * 16 + thread + 1) * 64 + static_cast<std::uint64_t>(groups[0]->rank()));
    std::vector<Chain> chains;
    for (const Group& group : groups) chains.push_back(new_chain(*group));
    std::vector<Pending> pending;
    const auto settle = [&](std::size_t which) {
      EXPECT_TRUE(pending[which].work->wait());
      pending[which].check();
      pending.erase(pending.begin() + static_cast<std::ptrdiff_t>(which));
    };
    const std::size_t calls = 4 + agreed.below(16);
    for (std::size_t number = 0; number < calls; ++number) {
      const std::size_t which = agreed.below(groups.size()), kind = agreed.below(10);
      Call call = draw(agreed, *groups[which], number);
      call.async = own.below(3) != 0;
      add_call(*groups[which], kind, call, chains[which], pending);
      while (!pending.empty() && own.below(3) == 0) settle(own.below(pending.size()));
    }
    while (!pending.empty()) settle(own.below(pending.size()));
    for (std::size_t i = 0; i < groups.size(); ++i) {
      const auto rank = static_cast<std::size_t>(groups[i]->rank());
      conformance::expect_same(chains[i].mine, chains[i].all[rank], "the tensor that calls built on");
    }
  }

  Call draw(Random& agreed, ProcessGroup& group, std::size_t number) const {
    Call call;
    call.number = number;
    call.count = static_cast<std::int64_t>(agreed.below((std::size_t{20000} >> agreed.below(15)) + 2));
    call.type = can_.dtypes[agreed.below(can_.dtypes.size())];
    call.in_order = agreed.below(3) != 0;
    const ReduceOp ops[] = {ReduceOp::sum(), ReduceOp::max(), ReduceOp::min()};
    call.op = ops[agreed.below(3)];
    if (!can_.every_operation || at::isComplexType(call.type) || call.type == at::kBool) call.op = ReduceOp::sum();
    call.root = static_cast<int>(agreed.below(64)) % group.size();
    call.async = false;
    return call;
  }

  static Chain new_chain(ProcessGroup& group) {
    Chain chain;
    for (int rank = 0; rank < group.size(); ++rank) chain.all.push_back(conformance::values(rank, 33, at::kLong));
    chain.mine = chain.all[static_cast<std::size_t>(group.rank())].clone();
    return chain;
  }

  // The input of `rank` for `call`.
  static at::Tensor input(const Call& call, int rank) {
    return conformance::values(rank + static_cast<int>(call.number), call.count, call.type);
  }
  static at::Tensor placed(const Call& call, const at::Tensor& dense) {
    return call.in_order ? dense : conformance::scattered(dense);
  }
  static at::Tensor place_for(const Call& call, std::int64_t count) {
    return placed(call, at::zeros({count}, at::TensorOptions(call.type)));
  }
  static Tensors inputs(const Call& call, ProcessGroup& group) {
    Tensors all;
    for (int rank = 0; rank < group.size(); ++rank) all.push_back(input(call, rank));
    return all;
  }
  static at::Tensor combined(ReduceOp op, const Tensors& all) {
    at::Tensor result = all[0].clone();
    for (std::size_t i = 1; i < all.size(); ++i) {
      if (op == ReduceOp::max()) {
        result = at::maximum(result, all[i]);
      } else if (op == ReduceOp::min()) {
        result = at::minimum(result, all[i]);
      } else {
        result = result.scalar_type() == at::kBool ? result.logical_or(all[i]) : result.add(all[i]);
      }
    }
    return result;
  }
  template <class Options>
  static Options options_of(const Call& call) {
    Options options;
    options.async = call.async;
    if constexpr (requires { options.root; }) options.root = call.root;
    if constexpr (requires { options.op; }) options.op = call.op;
    return options;
  }
  static void expect_later(std::vector<Pending>& pending, std::shared_ptr<Work> work, at::Tensor actual,
                           at::Tensor expected, const char* what) {
    pending.push_back({std::move(work), [actual = std::move(actual), expected = std::move(expected), what] {
                         conformance::expect_same(actual, expected, what);
                       }});
  }

  // There are ten kinds of calls. A kind that the group does not support becomes an all_reduce.
  void add_call(ProcessGroup& group, std::size_t kind, const Call& call, Chain& chain,
                std::vector<Pending>& pending) const {
    if (kind == 0) return add_broadcast(group, call, pending);
    if (kind == 1) return add_all_gather(group, call, pending);
    if (kind == 2 && can_.calls_in_order) return build_on(group, call, chain, pending);
    if (kind == 3) return pending.push_back({group.barrier(options_of<BarrierOptions>(call)), [] {}});
    if (kind == 4 && can_.reduce) return add_reduce(group, call, pending);
    if (kind == 5 && can_.gather) return add_gather(group, call, pending);
    if (kind == 6 && can_.scatter) return add_scatter(group, call, pending);
    if (kind == 7 && can_.reduce_scatter) return add_reduce_scatter(group, call, pending);
    if (kind == 8 && can_.all_to_all) return add_all_to_all(group, call, pending);
    if (kind == 9 && can_.point_to_point && group.size() > 1) return add_messages(group, call, pending);
    const at::Tensor tensor = placed(call, input(call, group.rank()));
    expect_later(pending, group.all_reduce({tensor}, options_of<AllReduceOptions>(call)), tensor,
                 combined(call.op, inputs(call, group)), "all_reduce");
  }

  static void add_broadcast(ProcessGroup& group, const Call& call, std::vector<Pending>& pending) {
    const at::Tensor tensor = placed(call, input(call, group.rank()));
    expect_later(pending, group.broadcast({tensor}, options_of<BroadcastOptions>(call)), tensor, input(call, call.root),
                 "broadcast");
  }

  static void add_all_gather(ProcessGroup& group, const Call& call, std::vector<Pending>& pending) {
    const at::Tensor output = place_for(call, call.count * group.size());
    auto work = group.all_gather_into_tensor(output, placed(call, input(call, group.rank())),
                                             options_of<AllGatherOptions>(call));
    expect_later(pending, std::move(work), output, at::cat(inputs(call, group)), "all_gather_into_tensor");
  }

  // Makes a call on the chain's tensor, whether or not the previous call on the tensor has ended.
  static void build_on(ProcessGroup& group, const Call& call, Chain& chain, std::vector<Pending>& pending) {
    const auto root = static_cast<std::size_t>(call.root);
    if (call.count % 3 == 0) {
      chain.all.assign(chain.all.size(), chain.all[root].clone());
      pending.push_back({group.broadcast({chain.mine}, options_of<BroadcastOptions>(call)), [] {}});
    } else {
      chain.all.assign(chain.all.size(), combined(call.op, chain.all));
      pending.push_back({group.all_reduce({chain.mine}, options_of<AllReduceOptions>(call)), [] {}});
    }
  }

  static void add_reduce(ProcessGroup& group, const Call& call, std::vector<Pending>& pending) {
    const at::Tensor tensor = placed(call, input(call, group.rank()));
    const bool here = group.rank() == call.root;
    expect_later(pending, group.reduce({tensor}, options_of<ReduceOptions>(call)), tensor,
                 here ? combined(call.op, inputs(call, group)) : input(call, group.rank()), "reduce");
  }

  static void add_gather(ProcessGroup& group, const Call& call, std::vector<Pending>& pending) {
    const bool here = group.rank() == call.root;
    Tensors outputs;
    for (int rank = 0; here && rank < group.size(); ++rank) outputs.push_back(place_for(call, call.count));
    auto work = group.gather(conformance::on_root(here, outputs), {placed(call, input(call, group.rank()))},
                             options_of<GatherOptions>(call));
    pending.push_back({std::move(work), [outputs, expected = inputs(call, group)] {
                         for (std::size_t i = 0; i < outputs.size(); ++i)
                           conformance::expect_same(outputs[i], expected[i], "gather");
                       }});
  }

  static void add_scatter(ProcessGroup& group, const Call& call, std::vector<Pending>& pending) {
    const at::Tensor output = place_for(call, call.count);
    Tensors parts;
    for (const at::Tensor& part : inputs(call, group)) parts.push_back(placed(call, part));
    auto work = group.scatter({output}, conformance::on_root(group.rank() == call.root, parts),
                              options_of<ScatterOptions>(call));
    expect_later(pending, std::move(work), output, input(call, group.rank()), "scatter");
  }

  static void add_reduce_scatter(ProcessGroup& group, const Call& call, std::vector<Pending>& pending) {
    Call whole = call;
    whole.count = call.count * group.size();
    const at::Tensor output = place_for(call, call.count);
    auto work = group.reduce_scatter_tensor(output, placed(call, input(whole, group.rank())),
                                            options_of<ReduceScatterOptions>(call));
    expect_later(pending, std::move(work), output,
                 combined(call.op, inputs(whole, group)).narrow(0, group.rank() * call.count, call.count),
                 "reduce_scatter_tensor");
  }

  // Rank r sends rank s the input that rank r + s would have for a call of r + s + 1 elements.
  static void add_all_to_all(ProcessGroup& group, const Call& call, std::vector<Pending>& pending) {
    const auto part = [&](int from, int to) {
      Call some = call;
      some.count = from + to + 1;
      return input(some, from + to);
    };
    Tensors sent, expected;
    std::vector<std::int64_t> splits;
    for (int peer = 0; peer < group.size(); ++peer) {
      sent.push_back(part(group.rank(), peer));
      expected.push_back(part(peer, group.rank()));
      splits.push_back(sent.back().numel());
    }
    const at::Tensor wanted = at::cat(expected), output = place_for(call, wanted.numel());
    auto work =
        group.all_to_all_single(output, placed(call, at::cat(sent)), splits, splits, options_of<AllToAllOptions>(call));
    expect_later(pending, std::move(work), output, wanted, "all_to_all_single");
  }

  static void add_messages(ProcessGroup& group, const Call& call, std::vector<Pending>& pending) {
    const int next = (group.rank() + 1) % group.size(), before = (group.rank() + group.size() - 1) % group.size();
    const at::Tensor received = place_for(call, call.count);
    const int tag = static_cast<int>(call.number);
    pending.push_back({group.send({placed(call, input(call, group.rank()))}, next, tag), [] {}});
    expect_later(pending, group.recv({received}, before, tag), received, input(call, before), "a message");
  }

  const std::uint64_t seed_;
  const Capabilities can_;
};

// Runs the random programs with the seeds `first` to `first + count - 1` in each world of the traits of `Group`. In
// each world, stops after the first program that fails on any rank. For tests that run more programs than the
// conformance suite. To run a failed program again, pass its seed as `first` and 1 as `count`.
template <class Group>
void run_random_programs(std::uint64_t first, std::uint64_t count) {
  using Traits = ConformanceTraits<Group>;
  for (const int size : Traits::worlds()) {
    Traits::run(size, [&](const std::shared_ptr<ProcessGroup>& group) {
      for (std::uint64_t seed = first; seed < first + count; ++seed) {
        RandomProgram(seed, Traits::capabilities()).run(group);
        const at::Tensor failures = at::full({1}, ::testing::Test::HasFailure() ? 1 : 0, at::kLong);
        group->all_reduce({failures})->wait();
        if (failures.item<std::int64_t>() > 0) break;
      }
    });
  }
}

}  // namespace gradwire::testing
