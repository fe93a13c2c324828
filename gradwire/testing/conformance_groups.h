// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Works, messages, duplicates, splits and ends of groups, and DDP over a group. Each function is the body of one test
// of the conformance suite, on one rank. Internal to the suite.
#pragma once

#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>
#include <c10/core/GradMode.h>
#include <torch/nn/modules/linear.h>

#include <string>
#include <thread>

#include "gradwire/base/error.h"
#include "gradwire/ddp/distributed_data_parallel.h"
#include "gradwire/testing/conformance_traits.h"
#include "gradwire/testing/conformance_values.h"

namespace gradwire::testing::conformance {

using Group = std::shared_ptr<ProcessGroup>;

inline at::Tensor number(double value) { return at::full({1}, value, at::kDouble); }
inline double number_of(const at::Tensor& tensor) { return tensor.item<double>(); }

inline void expect_rank_and_size(ProcessGroup& group, int size) {
  ASSERT_EQ(group.size(), size);
  const at::Tensor ranks = at::zeros({size}, at::kLong), mine = at::full({1}, group.rank(), at::kLong);
  group.all_gather_into_tensor(ranks, mine)->wait();
  expect_same(ranks, at::arange(size, at::kLong), "the ranks in order");
  EXPECT_FALSE(group.name().empty());
}

// A caller may wait for a Work twice, from several threads, and after the group was destroyed.
inline void works_may_be_waited_for_again(const Group& group) {
  const at::Tensor tensor = number(1);
  const auto work = group->all_reduce({tensor});
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) threads.emplace_back([&] { EXPECT_TRUE(work->wait()); });
  EXPECT_TRUE(work->wait());
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(work->wait());
  EXPECT_TRUE(work->is_completed());
  EXPECT_TRUE(work->is_success());
  EXPECT_EQ(work->exception(), nullptr);
  EXPECT_EQ(number_of(tensor), group->size());
  Group copy = group->dup();
  if (copy == nullptr) return;
  const auto orphan = copy->all_reduce({tensor});
  copy.reset();
  EXPECT_TRUE(orphan->wait());
  EXPECT_TRUE(orphan->wait());
  EXPECT_EQ(number_of(tensor), group->size() * group->size());
}

inline void callbacks_may_wait(const Group& group, const Capabilities& can) {
  if (!can.waiting_callbacks) return;
  const at::Tensor first = number(1), second = number(10);
  const Future chained = group->all_reduce({first})->future()->then(
      [&](c10::ivalue::Future& done) {
        EXPECT_EQ(done.value().toTensorVector().size(), 1U);
        group->all_reduce({second})->wait();
        AllReduceOptions at_once;
        at_once.async = false;
        group->all_reduce({second}, at_once)->wait();
        return c10::IValue(second);
      },
      c10::TensorType::get());
  chained->waitAndThrow();
  EXPECT_EQ(number_of(first), group->size());
  EXPECT_EQ(number_of(second), 10 * group->size() * group->size());
}

inline void duplicates_have_sequences_of_their_own(const Group& group, const Capabilities& can) {
  const Group copy = group->dup();
  if (!can.duplicates) {
    EXPECT_EQ(copy, nullptr);
    return;
  }
  ASSERT_NE(copy, nullptr);
  const Group copy_of_copy = copy->dup();
  ASSERT_NE(copy_of_copy, nullptr);
  EXPECT_EQ(copy->rank(), group->rank());
  EXPECT_EQ(copy->size(), group->size());
  EXPECT_EQ(copy->timeout(), group->timeout());
  // The ranks call the three groups in different orders, which would be a mismatch in one sequence of calls.
  const Tensors tensors{number(1), number(2), number(3)};
  const std::vector<Group> groups{group, copy, copy_of_copy};
  std::vector<std::shared_ptr<Work>> works;
  for (std::size_t i = 0; i < 3; ++i) {
    const std::size_t which = (i + static_cast<std::size_t>(group->rank())) % 3;
    works.push_back(groups[which]->all_reduce({tensors[which]}));
  }
  for (const auto& work : works) work->wait();
  for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(number_of(tensors[i]), group->size() * (static_cast<double>(i) + 1));
}

// Splits into the even ranks in reverse order and the odd ranks in order; then leaves out the last rank.
inline void splits_are_ordered_by_key(const Group& group, const Capabilities& can) {
  const bool even = group->rank() % 2 == 0;
  const auto halve = [&] { return group->split(even ? 0 : 1, even ? -group->rank() : 0, "half"); };
  if (!can.splits) {
    EXPECT_THROW(halve(), UnsupportedError);
    return;
  }
  const int evens = (group->size() + 1) / 2, odds = group->size() / 2;
  for (int round = 0; round < 2; ++round) {
    const Group part = halve();
    ASSERT_NE(part, nullptr);
    EXPECT_EQ(part->size(), even ? evens : odds);
    EXPECT_EQ(part->rank(), even ? evens - 1 - group->rank() / 2 : group->rank() / 2);
    EXPECT_EQ(part->group_desc(), "half");
    const at::Tensor sum = number(group->rank());
    part->all_reduce({sum})->wait();
    EXPECT_EQ(number_of(sum), even ? evens * (evens - 1) : odds * odds);
    part->shutdown();
  }
  const int last = group->size() - 1;
  const Group some = group->split(group->rank() == last ? -1 : 7);
  EXPECT_EQ(some == nullptr, group->rank() == last);
  if (some != nullptr) some->barrier()->wait();
}

// Every rank sends to the next rank and then receives from the previous rank.
inline void messages_go_around(const Group& group, const Capabilities& can) {
  if (group->size() == 1) return;
  const int next = (group->rank() + 1) % group->size(), before = (group->rank() + group->size() - 1) % group->size();
  if (!can.point_to_point) {
    EXPECT_THROW(group->send({number(1)}, next), UnsupportedError);
    EXPECT_THROW(group->recv({number(1)}, before), UnsupportedError);
    return;
  }
  for (const std::int64_t count : {0, 1, 1000, 1 << 20}) {
    const at::Tensor mine = values(group->rank(), count, at::kFloat), theirs = blank(count, at::kFloat, false);
    const auto sent = group->send({mine}, next);
    const auto received = group->recv({theirs}, before);
    EXPECT_TRUE(received->wait());
    EXPECT_TRUE(sent->wait());
    expect_same(theirs, values(before, count, at::kFloat), "a message");
    EXPECT_EQ(received->source_rank(), before);
  }
  group->monitored_barrier(std::chrono::minutes(2));
}

// Rank 0 sends messages during a collective that the other ranks call only after they have received the messages.
inline void messages_are_matched_by_tag_and_never_wait_for_collectives(const Group& group, const Capabilities& can) {
  if (!can.point_to_point || group->size() == 1) return;
  const at::Tensor reduced = number(1);
  if (group->rank() == 0) {
    const auto collective = group->all_reduce({reduced});
    // Not waited for one by one: a send may end only when its message is received.
    std::vector<std::shared_ptr<Work>> sent;
    for (int peer = 1; peer < group->size(); ++peer) {
      sent.push_back(group->send({number(5)}, peer, 5));
      sent.push_back(group->send({number(6)}, peer, 6));
      sent.push_back(group->send({number(7)}, peer, 5));
    }
    for (const auto& message : sent) message->wait();
    collective->wait();
  } else {
    const at::Tensor first = number(0), second = number(0), other = number(0);
    group->recv({other}, 0, 6)->wait();
    group->recv({first}, 0, 5)->wait();
    group->recv({second}, 0, 5)->wait();
    EXPECT_EQ(number_of(first), 5);
    EXPECT_EQ(number_of(second), 7);
    EXPECT_EQ(number_of(other), 6);
    group->all_reduce({reduced})->wait();
  }
  EXPECT_EQ(number_of(reduced), group->size());
}

inline void receives_from_any_source(const Group& group, const Capabilities& can) {
  if (!can.receive_any_source) {
    EXPECT_THROW(group->recv_anysource({number(0)}, 9), UnsupportedError);
    return;
  }
  if (group->rank() != 0) {
    group->send({number(group->rank())}, 0, 9)->wait();
    return;
  }
  double sum = 0;
  for (int peer = 1; peer < group->size(); ++peer) {
    const at::Tensor got = number(0);
    const auto work = group->recv_anysource({got}, 9);
    work->wait();
    EXPECT_EQ(work->source_rank(), number_of(got));
    sum += number_of(got);
  }
  EXPECT_EQ(sum, group->size() * (group->size() - 1) / 2);
}

// Ends the group.
inline void ranks_that_disagree_see_a_mismatch(const Group& group, const Capabilities& can) {
  if (!can.mismatches || group->size() == 1) return;
  const at::Tensor tensor = at::ones({group->rank() == 0 ? 4 : 5});
  EXPECT_THROW(group->all_reduce({tensor})->wait(), MismatchError);
}

// Ends the group. Rank 0 waits for a message that nobody sends, while the others wait for one that rank 0 sends later.
inline void a_missed_deadline_is_a_timeout(const Group& group, const Capabilities& can) {
  if (!can.deadlines || !can.point_to_point || group->size() == 1) return;
  const at::Tensor tensor = number(1);
  if (group->rank() == 0) {
    const auto before = group->timeout();
    group->set_timeout(std::chrono::milliseconds(200));
    EXPECT_THROW(group->recv({tensor}, 1, 3)->wait(), TimeoutError);
    group->set_timeout(before);
  }
  // A group may be at its end after a timeout. Then the others learn of it, and do not wait for their own deadlines.
  const auto start = std::chrono::steady_clock::now();
  try {
    if (group->rank() != 0) group->recv({tensor}, 0, 4)->wait();
    for (int peer = 1; group->rank() == 0 && peer < group->size(); ++peer) group->send({tensor}, peer, 4)->wait();
  } catch (const Error& error) {
    EXPECT_LT(std::chrono::steady_clock::now() - start, group->timeout() / 2) << error.what();
  }
}

// Ends the group. Calls that had ended keep their outcome. All other calls, and all later calls, fail with the reason
// on every rank, in each wait().
inline void abort_tells_everybody_why(const Group& group, const Capabilities& can) {
  const at::Tensor tensor = number(1);
  const auto before = group->all_reduce({tensor});
  before->wait();
  if (can.aborts) {
    if (group->rank() == 0) group->abort("the test wants it");
    for (int i = 0; i < 2; ++i) {
      try {
        const auto work = group->all_reduce({tensor});
        EXPECT_THROW(work->wait(), Error);
        work->wait();
        ADD_FAILURE() << "rank " << group->rank() << ": a collective ended well after abort()";
      } catch (const Error& error) {
        EXPECT_NE(std::string(error.what()).find("the test wants it"), std::string::npos) << error.what();
      }
    }
  } else {
    group->abort("nothing comes of it");
    group->all_reduce({tensor})->wait();
  }
  EXPECT_TRUE(before->wait());
  EXPECT_TRUE(before->is_success());
}

inline void shutdown_ends_it_well(const Group& group) {
  const at::Tensor tensor = number(1);
  const auto work = group->all_reduce({tensor});
  group->shutdown();
  EXPECT_TRUE(work->wait());
  EXPECT_EQ(number_of(tensor), group->size());
  group->shutdown();
}

// Gradients under DDP equal the gradients of one model over the whole batch.
inline void ddp_averages_gradients(const Group& group) {
  const at::Tensor start = at::arange(12, at::kFloat).view({3, 4}).div(8).sub(0.5);
  const auto make_net = [&] {
    torch::nn::Linear net(4, 3);
    const c10::NoGradGuard no_grad;
    net->weight.copy_(start);
    net->bias.zero_();
    return net;
  };
  for (const bool view : {false, true}) {
    DdpOptions options;
    options.process_group = group;
    options.gradient_as_bucket_view = view;
    torch::nn::Linear net = make_net(), whole = make_net();
    DistributedDataParallel ddp(net, options);
    for (int step = 0; step < 3; ++step) {
      const at::Tensor x = at::arange(8 * group->size(), at::kFloat).view({2 * group->size(), 4}).div(16).sub(step);
      for (auto& parameter : whole->parameters()) parameter.mutable_grad().reset();
      ddp.zero_grad();
      ddp(x.narrow(0, 2 * group->rank(), 2)).square().mean().backward();
      whole(x).square().mean().backward();
      for (std::size_t i = 0; i < 2; ++i)
        EXPECT_TRUE(at::allclose(net->parameters()[i].grad(), whole->parameters()[i].grad(), 1e-4, 1e-5))
            << "step " << step;
    }
  }
}

}  // namespace gradwire::testing::conformance
