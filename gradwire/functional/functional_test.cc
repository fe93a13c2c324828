// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// What users of the differentiable collectives rely on beside the gradients: the examples of PyTorch's own suite, send
// and recv, no-grad mode, and refusals.
#include <limits>

#include "gradwire/base/error.h"
#include "gradwire/base/log.h"
#include "gradwire/functional/functional_test_support.h"
#include "tests/support/local_group.h"

namespace gradwire::testing::functional_test {
namespace {

using Body = std::function<void(int rank, const functional::Group& group)>;

void run_two(const Body& body) {
  test_support::run_ranks("threads", 2, [&](int rank, const std::shared_ptr<Store>& store) {
    body(rank, make_process_group("threads", store, rank, 2));
  });
}

at::Tensor ones(double value) { return at::full({5, 5}, value, at::kDouble); }

template <class E>
std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const E& error) {
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return {};
}

// test_gather and test_scatter of PyTorch's test_c10d_spawn_gloo.py.
TEST(Functional, GatherIsZeroOffTheRootAndItsGradientComesFromTheRoot) {
  run_two([](int rank, const functional::Group& group) {
    const at::Tensor x = ones(1 + rank).requires_grad_();
    const Tensors parts = functional::gather(x, 1, group);
    for (std::size_t i = 0; i < parts.size(); ++i) {
      EXPECT_TRUE(at::equal(parts[i], rank == 1 ? ones(1.0 + static_cast<double>(i)) : ones(0)));
    }
    at::stack(parts).sum(0).sin().sum().backward();
    EXPECT_TRUE(at::allclose(x.grad(), ones(3).cos()));
  });
}

TEST(Functional, ScatterGivesZeroGradientsToWhatWasNotTheRoot) {
  run_two([](int rank, const functional::Group& group) {
    const at::Tensor x0 = ones(1).requires_grad_(), x1 = ones(2).requires_grad_();
    const at::Tensor y = functional::scatter({x0, x1}, 1, group);
    EXPECT_TRUE(at::equal(y, ones(1 + rank)));
    y.sin().sum().backward();
    EXPECT_TRUE(at::allclose(x0.grad(), rank == 1 ? ones(1).cos() : ones(0)));
    EXPECT_TRUE(at::allclose(x1.grad(), rank == 1 ? ones(2).cos() : ones(0)));
  });
}

// The sum of both ranks' losses is 2 max(x0, x1): PyTorch's own gives both ranks 1.
TEST(Functional, TheGradientOfAMaximumGoesToItsHolder) {
  run_two([](int rank, const functional::Group& group) {
    const at::Tensor x = at::full({1}, rank + 1.0, at::kDouble).requires_grad_();
    functional::all_reduce(x, group, ReduceOp::max()).sum().backward();
    EXPECT_EQ(x.grad().item<double>(), rank == 1 ? 2 : 0);
  });
}

TEST(Functional, NanIsTheExtremeAndItsHolderGetsTheGradient) {
  run_two([](int rank, const functional::Group& group) {
    const double value = rank == 0 ? std::numeric_limits<double>::quiet_NaN() : 5;
    const at::Tensor x = at::full({1}, value, at::kDouble).requires_grad_();
    functional::all_reduce(x, group, ReduceOp::min()).sum().backward();
    EXPECT_EQ(x.grad().item<double>(), rank == 0 ? 2 : 0);
  });
}

TEST(Functional, InputsStayAsTheyAre) {
  run_two([](int rank, const functional::Group& group) {
    const at::Tensor x = ones(rank);
    functional::all_reduce(x, group);
    functional::broadcast(x, 1, group);
    functional::reduce(x, 0, group);
    EXPECT_TRUE(at::equal(x, ones(rank)));
  });
}

TEST(Functional, NoGraphIsMadeWhereNobodyNeedsAGradient) {
  run_two([](int rank, const functional::Group& group) {
    const at::Tensor y = functional::all_reduce(at::full({2}, rank, at::kLong), group, ReduceOp::bor());
    EXPECT_TRUE(at::equal(y, at::ones({2}, at::kLong)));
    EXPECT_FALSE(y.requires_grad());
    const at::NoGradGuard guard;
    EXPECT_FALSE(functional::all_reduce(ones(1).requires_grad_(), group).requires_grad());
  });
}

TEST(Functional, ARankInNoGradModeIsRefusedOnAllRanksAndTheGroupGoesOn) {
  run_two([](int rank, const functional::Group& group) {
    const std::string message = message_of<InvalidArgument>([&] {
      const at::AutoGradMode mode(rank == 0);
      functional::all_reduce(ones(1).requires_grad_(), group);
    });
    EXPECT_NE(message.find("no-grad"), std::string::npos) << message;
    EXPECT_TRUE(at::equal(functional::all_reduce(ones(1), group), ones(2)));
  });
}

TEST(Functional, AMessageAndItsGradientTravelBothWays) {
  run_two([](int rank, const functional::Group& group) {
    const at::Tensor x = at::full({3}, 2.0 + rank, at::kDouble).requires_grad_();
    // Each sends to the other, then computes with what came.
    const at::Tensor sent = functional::send(x, 1 - rank, group, 7);
    const at::Tensor received = functional::recv(at::empty({3}, at::kDouble), 1 - rank, group, 7);
    EXPECT_TRUE(at::equal(received, at::full({3}, 3.0 - rank, at::kDouble)));
    (received.pow(3).sum() + sent).backward();
    EXPECT_TRUE(at::allclose(x.grad(), 3 * x.detach().pow(2)));
  });
}

// What backward() does not read may change in place, as in PyTorch.
TEST(Functional, WhatIsNotReadAgainMayChangeInPlace) {
  run_two([](int rank, const functional::Group& group) {
    for (const ReduceOp op : {ReduceOp::sum(), ReduceOp::avg(), ReduceOp::premul_sum(0.5)}) {
      Tensors gradients;
      for (const bool changes : {false, true}) {
        const at::Tensor x = at::full({2}, 1.0 + rank, at::kDouble).requires_grad_();
        const at::Tensor input = x * 2;
        const at::Tensor all = functional::all_reduce(input, group, op);
        const at::Tensor at_root = functional::reduce(input, 1, group, op);
        const at::Tensor part = functional::reduce_scatter({input, input}, group, op);
        const at::Tensor sent = functional::send(input, 1 - rank, group);
        const at::Tensor received = functional::recv(at::empty({2}, at::kDouble), 1 - rank, group);
        if (changes) {
          for (at::Tensor tensor : {all, at_root, part, input}) tensor.add_(1);
        }
        (all.sum() + at_root.sum() + part.sum() + received.sum() + sent).backward();
        gradients.push_back(x.grad());
      }
      EXPECT_TRUE(at::equal(gradients[0], gradients[1])) << gradients;
    }
  });
}

TEST(Functional, AMessageNeedsNoGradientWhereItsSenderNeedsNone) {
  run_two([](int rank, const functional::Group& group) {
    if (rank == 0) {
      EXPECT_FALSE(functional::send(ones(1), 1, group).requires_grad());
    } else {
      EXPECT_FALSE(functional::recv(ones(0), 0, group).requires_grad());
    }
  });
}

TEST(Functional, AMessageOfWhichTheGradientCannotBeSentBackIsUsedUp) {
  run_two([](int rank, const functional::Group& group) {
    if (rank == 0) {
      functional::send(ones(3).requires_grad_(), 1, group);
      functional::send(at::full({2}, 7.0, at::kDouble), 1, group);
    } else {
      message_of<InvalidArgument>([&] {
        const at::NoGradGuard guard;
        functional::recv(ones(3), 0, group);
      });
      EXPECT_TRUE(at::equal(functional::recv(at::empty({2}, at::kDouble), 0, group), at::full({2}, 7.0, at::kDouble)));
    }
  });
}

// A group of which no message is sent, as the other rank does not come.
class GroupWithALateRank final : public ProcessGroup {
 public:
  GroupWithALateRank() : ProcessGroup(/*rank=*/0, /*size=*/2) {}

 protected:
  std::shared_ptr<Work> do_send(Tensors&, int destination, int) override {
    return failed_work(std::make_exception_ptr(TimeoutError("send: the deadline passed", {destination})));
  }
};

TEST(Functional, BackwardTellsOfAMessageThatWasNotSent) {
  const at::Tensor sent = functional::send(ones(3).requires_grad_(), 1, std::make_shared<GroupWithALateRank>());
  EXPECT_EQ(message_of<TimeoutError>([&] { sent.backward(); }), "send: the deadline passed");
}

TEST(Functional, TheLogTellsOfAMessageThatWasNotSentWithoutABackward) {
  log::set_level(log::Level::warn);
  ::testing::internal::CaptureStderr();
  {
    const at::NoGradGuard guard;
    functional::send(ones(3), 1, std::make_shared<GroupWithALateRank>(), 7);
  }
  const std::string text = ::testing::internal::GetCapturedStderr();
  log::set_level(log::Level::off);
  EXPECT_NE(text.find("send on rank 0 to rank 1, tag 7: "), std::string::npos) << text;
  EXPECT_NE(text.find("the deadline passed"), std::string::npos) << text;
}

TEST(Functional, SendAndRecvHaveNoSecondDerivative) {
  run_two([](int rank, const functional::Group& group) {
    at::Tensor x = ones(1).requires_grad_();
    const at::Tensor end = rank == 0 ? functional::send(x, 1, group) : functional::recv(ones(0), 0, group).sum();
    message_of<UnsupportedError>([&] { torch::autograd::backward({end}, {}, true, true); });
  });
}

// A user's group with nothing but broadcast, all_gather and all_reduce.
TEST(Functional, WorksOverAUsersGroup) {
  const auto meeting = std::make_shared<Meeting>(2);
  test_support::run_ranks("threads", 2, [&](int rank, const std::shared_ptr<Store>&) {
    const auto group = std::make_shared<LocalGroup>(meeting, rank, 2);
    const at::Tensor x = at::full({2}, 1.0 + rank, at::kDouble).requires_grad_();
    functional::all_reduce(x, group).pow(2).sum().backward();
    EXPECT_TRUE(at::allclose(x.grad(), at::full({2}, 12.0, at::kDouble)));
  });
}

// The sum of the gradients is beyond the largest half, 65504; PyTorch's own divides after the sum, too.
TEST(Functional, GradientsOfAveragesOfHalvesStayFinite) {
  run_two([](int, const functional::Group& group) {
    const at::Tensor x = at::ones({3}, at::kHalf).requires_grad_();
    functional::all_reduce(x, group, ReduceOp::avg()).backward(at::full({3}, 40000, at::kHalf));
    EXPECT_TRUE(at::equal(x.grad(), at::full({3}, 40000, at::kHalf))) << x.grad();
  });
}

// The other rank need not know of it.
TEST(Functional, AnOwnPartThatDoesNotFitIsRefusedBeforeAnyCommunication) {
  run_two([](int rank, const functional::Group& group) {
    const at::Tensor x = at::full({4, 1}, rank, at::kDouble);
    if (rank == 0) {
      EXPECT_THROW(functional::all_to_all_single(x, group, {3, 2}, {2, 2}), InvalidArgument);
      EXPECT_THROW(functional::all_to_all({x, x}, group, {{3, 1}, {4, 1}}), InvalidArgument);
      EXPECT_THROW(functional::all_to_all({x, x}, group, {{4, 1}, {-1, 1}}), InvalidArgument);
    }
    const at::Tensor y = functional::all_to_all_single(x, group, {2, 2}, {2, 2});
    EXPECT_TRUE(at::equal(y.view({4}), at::tensor({0.0, 0.0, 1.0, 1.0}, at::kDouble)));
  });
}

TEST(Functional, BadArgumentsAreRefusedWithAClearSentence) {
  run_two([](int, const functional::Group& group) {
    const at::Tensor x = ones(1).requires_grad_();
    const auto refused = [](const std::string& part, const std::function<void()>& call) {
      const std::string message = message_of<InvalidArgument>(call);
      EXPECT_NE(message.find(part), std::string::npos) << message;
    };
    refused("no group", [&] { functional::all_reduce(x, nullptr); });
    refused("undefined", [&] { functional::all_reduce(at::Tensor(), group); });
    refused("not dense", [&] { functional::broadcast(ones(1).to_sparse(), 0, group); });
    refused("root 2", [&] { functional::broadcast(x, 2, group); });
    refused("pass one a rank", [&] { functional::scatter({x}, 0, group); });
    refused("shape", [&] { functional::reduce_scatter({x, x[0]}, group); });
    refused("no multiple", [&] { functional::all_to_all_single(x, group); });
    refused("add up", [&] { functional::all_to_all_single(x, group, {3, 3}, {3, 3}); });
    refused("itself", [&] { functional::send(x, group->rank(), group); });
    refused("no gradient", [&] { functional::all_reduce(x, group, ReduceOp::band()); });
  });
}

}  // namespace
}  // namespace gradwire::testing::functional_test
