// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Hooks under DDP: their order, their groups, their futures.
#include <ATen/core/jit_type.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <set>
#include <thread>

#include "gradwire/base/error.h"
#include "gradwire/ddp/ddp_test_support.h"

namespace gradwire::testing::ddp_hook_test {
namespace {

constexpr int kWorld = 2;
constexpr double kTinyCap = 16.0 / (1 << 20);  // every parameter of the Mlp in a bucket of its own

class DdpHook : public ::testing::TestWithParam<Setup> {
 protected:
  void ranks(const std::function<void(int, std::shared_ptr<ProcessGroup>)>& body, int size = kWorld) {
    run_ranks(GetParam(), size, body);
  }
  DdpOptions options(std::shared_ptr<ProcessGroup> group) const {
    auto made = options_for(GetParam(), std::move(group));
    made.bucket_cap_mb = kTinyCap;
    return made;
  }
  bool has_lanes() const { return GetParam().group != "local" && GetParam().lanes != 0; }
};
INSTANTIATE_TEST_SUITE_P(All, DdpHook, ::testing::ValuesIn(all_setups()), name_of_setup);

at::Tensor mean(GradBucket& bucket) {
  bucket.group().all_reduce({bucket.buffer().div_(bucket.divisor())})->wait();
  return bucket.buffer();
}

std::vector<at::Tensor> expected_gradients(int layers = 6) {
  Mlp alone(layers, 8);
  alone->forward(random_tensor({4, 8}, 30)).pow(2).mean().backward();
  return gradients_of(*alone);
}

at::Tensor share(int rank) { return random_tensor({4, 8}, 30).chunk(kWorld)[static_cast<std::size_t>(rank)]; }

// Twelve buckets, 50 iterations: a user's hook sees bucket 0, 1, ..., 11, and is_last once, at the end, from the second
// iteration on, when there are twelve.
TEST_P(DdpHook, AUsersHookSeesBucketsInOrder) {
  const auto expected = expected_gradients();
  ranks([&](int rank, auto group) {
    struct Seen {
      std::uint32_t iteration;
      std::size_t index;
      bool is_last;
    };
    auto seen = std::make_shared<std::vector<Seen>>();
    Mlp net(6, 8);
    DistributedDataParallel ddp(net, options(group));
    ddp.register_comm_hook(seen, [](std::shared_ptr<std::vector<Seen>>& state, GradBucket& bucket) {
      state->push_back({bucket.iteration(), bucket.index(), bucket.is_last()});
      return mean(bucket);
    });
    for (std::uint32_t iteration = 0; iteration < 50; ++iteration) {
      seen->clear();
      ddp.zero_grad();
      ddp(share(rank)).pow(2).mean().backward();
      ASSERT_EQ(seen->size(), iteration == 0 ? 1u : 12u);
      for (std::size_t i = 0; i < seen->size(); ++i) {
        EXPECT_EQ((*seen)[i].index, i);
        EXPECT_EQ((*seen)[i].iteration, iteration);
        EXPECT_EQ((*seen)[i].is_last, i + 1 == seen->size());
      }
    }
    expect_close(gradients_of(*net), expected);
  });
}

// A hook that may run for several buckets at once does so on as many threads as there are lanes, bucket k on lane k mod
// L.
TEST_P(DdpHook, AParallelSafeHookRunsOnAllLanes) {
  const auto expected = expected_gradients();
  ranks([&](int rank, auto group) {
    std::mutex mutex;
    std::map<std::size_t, std::thread::id> threads;
    Mlp net(6, 8);
    DistributedDataParallel ddp(net, options(group));
    ddp.register_comm_hook(
        [&](GradBucket& bucket) {
          {
            const std::lock_guard lock(mutex);
            threads[bucket.index()] = std::this_thread::get_id();
          }
          return mean(bucket);
        },
        {.name = "parallel", .parallel_safe = true});
    for (int step = 0; step < 5; ++step) {
      ddp.zero_grad();
      ddp(share(rank)).pow(2).mean().backward();
    }
    expect_close(gradients_of(*net), expected);
    ASSERT_EQ(threads.size(), 12u);
    const std::size_t lanes = has_lanes() ? static_cast<std::size_t>(GetParam().lanes < 0 ? 1 : GetParam().lanes) : 1;
    for (const auto& [index, thread] : threads) EXPECT_EQ(thread, threads[index % lanes]);
    std::set<std::thread::id> distinct;
    for (const auto& [index, thread] : threads) distinct.insert(thread);
    EXPECT_EQ(distinct.size(), lanes);
    EXPECT_EQ(distinct.count(std::this_thread::get_id()), has_lanes() ? 0u : 1u);
  });
}

// A hook that captured the group it was made with is led to its lane's duplicate, beside the user's own calls on that
// group in the middle of backward.
struct SyncFunction : torch::autograd::Function<SyncFunction> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x, std::int64_t group) {
    context->saved_data["group"] = group;
    return x.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    auto* group = reinterpret_cast<ProcessGroup*>(context->saved_data["group"].toInt());
    at::Tensor sum = gradients[0].clone();
    AllReduceOptions options;
    options.async = false;
    group->all_reduce({sum}, options)->wait();
    // What every rank adds is known, so the sum shows whether this call met a bucket's.
    at::Tensor ones = at::ones({5});
    group->all_reduce({ones}, options)->wait();
    EXPECT_TRUE(ones.equal(at::full({5}, static_cast<double>(group->size()))));
    return {sum / group->size(), at::Tensor()};
  }
};

TEST_P(DdpHook, TheUsersOwnCallsOnTheGroupDoNotMeetThoseOfHooks) {
  const at::Tensor x = random_tensor(
      {2, 8}, 31);  // the same on all ranks, so that the exchange of gradients in the middle changes nothing
  Mlp front_alone(4, 8, 1), back_alone(4, 8, 2);
  back_alone->forward(front_alone->forward(x)).pow(2).mean().backward();
  ranks([&](int, auto group) {
    struct PairImpl : torch::nn::Module {
      explicit PairImpl(std::int64_t group) : group(group) {
        register_module("front", front);
        register_module("back", back);
      }
      at::Tensor forward(const at::Tensor& x) { return back(SyncFunction::apply(front(x), group)); }
      Mlp front{4, 8, 1}, back{4, 8, 2};
      std::int64_t group;
    };
    auto net = std::make_shared<PairImpl>(reinterpret_cast<std::int64_t>(group.get()));
    DistributedDataParallel<PairImpl> ddp(net, options(group));
    ddp.register_comm_hook(group, [](std::shared_ptr<ProcessGroup>& captured, GradBucket& bucket) {
      captured->all_reduce({bucket.buffer().div_(bucket.divisor())})->wait();
      return bucket.buffer();
    });
    for (int step = 0; step < 10; ++step) {
      ddp.zero_grad();
      ddp(x).pow(2).mean().backward();
      expect_close(gradients_of(*net->front), gradients_of(*front_alone));
      expect_close(gradients_of(*net->back), gradients_of(*back_alone));
    }
  });
}

// then-callbacks that start further collectives and wait for them.
TEST_P(DdpHook, CallbacksMayStartCollectivesAndWait) {
  const auto expected = expected_gradients();
  ranks([&](int rank, auto group) {
    Mlp net(6, 8);
    DistributedDataParallel ddp(net, options(group));
    ddp.register_comm_hook([](GradBucket& bucket) {
      const at::Tensor buffer = bucket.buffer();
      ProcessGroup* inner = &bucket.group();
      const double half = 0.5 / bucket.divisor();
      return bucket.group()
          .all_reduce({buffer.mul_(half)})
          ->future()
          ->then(
              [buffer, inner](c10::ivalue::Future& done) {
                const at::Tensor first = tensor_of(done).clone();
                inner->all_reduce({buffer})->wait();  // N times the half of the mean
                return c10::IValue(first + buffer.div_(inner->size()));
              },
              c10::TensorType::get());
    });
    for (int step = 0; step < 5; ++step) {
      ddp.zero_grad();
      ddp(share(rank)).pow(2).mean().backward();
      expect_close(gradients_of(*net), expected);
    }
  });
}

TEST_P(DdpHook, ASecondGroupIsNamedAtRegistration) {
  const auto expected = expected_gradients();
  auto meeting = std::make_shared<Meeting>(kWorld);
  ranks([&](int rank, auto group) {
    std::shared_ptr<ProcessGroup> second = group->dup();
    if (second == nullptr) second = std::make_shared<LocalGroup>(meeting, rank, kWorld);
    Mlp net(6, 8);
    DistributedDataParallel ddp(net, options(group));
    ddp.register_comm_hook(second,
                           [](std::shared_ptr<ProcessGroup>& other, GradBucket& bucket) {
                             at::Tensor half = bucket.buffer() / (2 * bucket.divisor());
                             at::Tensor rest = half.clone();
                             other->all_reduce({half})->wait();
                             bucket.group().all_reduce({rest})->wait();
                             return half + rest;
                           },
                           {.name = "two groups", .parallel_safe = true, .groups = {second}});
    for (int step = 0; step < 5; ++step) {
      ddp.zero_grad();
      ddp(share(rank)).pow(2).mean().backward();
      expect_close(gradients_of(*net), expected);
    }
  });
}

TEST_P(DdpHook, AfterAHookWasRefusedAnotherOneMayBeRegistered) {
  if (!has_lanes()) return;  // without lanes a hook may name such a group
  auto meeting = std::make_shared<Meeting>(kWorld);
  const auto expected = expected_gradients();
  ranks([&](int rank, auto group) {
    const auto second = std::make_shared<LocalGroup>(meeting, rank, kWorld);
    Mlp net(6, 8);
    DistributedDataParallel ddp(net, options(group));
    const auto hook = [](GradBucket& bucket) {
      bucket.group().all_reduce({bucket.buffer().div_(bucket.divisor())})->wait();
      return bucket.buffer();
    };
    const std::string error =
        error_of([&] { ddp.register_comm_hook(hook, HookTraits{.name = "first", .groups = {second}}); });
    EXPECT_NE(error.find("cannot be duplicated"), std::string::npos) << error;
    EXPECT_EQ(ddp.logging_data().comm_hook, "");
    ddp.register_comm_hook(hook, HookTraits{.name = "second"});
    EXPECT_EQ(ddp.logging_data().comm_hook, "second");
    ddp(share(rank)).pow(2).mean().backward();
    expect_close(gradients_of(*net), expected);
  });
}

TEST_P(DdpHook, AGroupThatNobodyNamedIsRefusedOnALane) {
  if (!has_lanes()) return;  // without lanes a hook's calls are ordered like any others
  ranks([&](int rank, auto group) {
    auto second = group->dup();
    DistributedDataParallel ddp(Mlp(), options(group));
    ddp.register_comm_hook([&](GradBucket& bucket) {
      second->all_reduce({bucket.buffer()})->wait();
      return bucket.buffer();
    });
    const std::string error = error_of([&] { ddp(share(rank)).sum().backward(); });
    EXPECT_NE(error.find("not named when the hook was registered"), std::string::npos) << error;
  });
}

TEST_P(DdpHook, AnAlreadySetFutureIsFine) {
  ranks([&](int rank, auto group) {
    Mlp net(6, 8);
    DistributedDataParallel ddp(net, options(group));
    ddp.register_comm_hook([](GradBucket& bucket) { return completed_future(at::ones_like(bucket.buffer())); });
    ddp(share(rank)).sum().backward();
    for (const auto& parameter : net->parameters()) EXPECT_TRUE(parameter.grad().equal(at::ones_like(parameter)));
  });
}

TEST_P(DdpHook, AHookIsCalledWithOneRankToo) {
  ranks(
      [&](int, auto group) {
        int calls = 0;
        Mlp net(6, 8);
        DistributedDataParallel ddp(net, options(group));
        ddp.register_comm_hook([&](GradBucket& bucket) {
          ++calls;
          return mean(bucket).mul_(2);
        });
        for (int step = 0; step < 2; ++step) {
          ddp.zero_grad();
          ddp(random_tensor({4, 8}, 30)).pow(2).mean().backward();
        }
        auto expected = expected_gradients();
        for (auto& gradient : expected) gradient.mul_(2);
        expect_close(gradients_of(*net), expected);
        EXPECT_EQ(calls, 1 + 12);
      },
      1);
}

TEST_P(DdpHook, SetBufferChangesWhatTheHookSees) {
  ranks([&](int rank, auto group) {
    Mlp net;
    DistributedDataParallel ddp(net, options(group));
    ddp.register_comm_hook([](GradBucket& bucket) {
      const at::Tensor own = bucket.buffer();
      bucket.set_buffer(at::full({own.numel()}, 3.0, at::kDouble));
      for (const auto& gradient : bucket.gradients()) EXPECT_TRUE(gradient.equal(at::full_like(gradient, 3.0)));
      EXPECT_NE(error_of([&] { bucket.set_buffer(at::zeros({own.numel() + 1})); }), "");
      EXPECT_NE(error_of([&] { bucket.set_buffer(at::zeros({1, own.numel()})); }), "");
      return bucket.buffer().to(at::kFloat);
    });
    ddp(share(rank)).sum().backward();
    for (const auto& parameter : net->parameters()) EXPECT_TRUE(parameter.grad().equal(at::full_like(parameter, 3.0)));
  });
}

// ---- A user's group
// ---------------------------------------------------------------------------------------------------------------------

// DDP over a group of one rank that has only three collectives: it waits for what it must finish, takes futures of what
// it overlaps, and trains as without it.
TEST(BucketLayout, ASlotHasTheStridesOfADenseGradientAndRowMajorOnesOfAnyOther) {
  const at::Tensor transposed = at::arange(6, at::kFloat).view({2, 3}).t();
  const at::Tensor expanded = at::arange(2, at::kFloat).view({2, 1}).expand({2, 4});
  const at::Tensor empty = at::zeros({0, 3});
  BucketLayout layout;
  layout.append(7, transposed, transposed, "a");
  layout.append(3, expanded, transposed, "b");
  layout.append(5, empty, empty, "c");
  using Numbers = std::vector<std::int64_t>;
  EXPECT_EQ(layout.numel, 14);
  EXPECT_EQ(layout.names, (std::vector<std::string>{"a", "b", "c"}));
  EXPECT_TRUE(layout.parameters[1].is_same(transposed));
  EXPECT_EQ(layout.slots[0].parameter, 7U);
  EXPECT_EQ(layout.slots[0].strides, (Numbers{1, 3}));
  EXPECT_EQ(layout.slots[1].offset, 6);
  EXPECT_EQ(layout.slots[1].numel, 8);
  EXPECT_EQ(layout.slots[1].sizes, (Numbers{2, 4}));
  EXPECT_EQ(layout.slots[1].strides, (Numbers{4, 1}));
  EXPECT_EQ(layout.slots[2].offset, 14);
  const at::Tensor buffer = at::zeros({layout.numel});
  const std::vector<at::Tensor> views = layout.views(buffer);
  views[0].copy_(transposed);
  views[1].copy_(expanded);
  EXPECT_EQ(buffer.sum().item<float>(), 15 + 4);
}

TEST(UsersGroup, OfOneRankIsCalledAndChangesNothing) {
  for (const bool view : {false, true}) {
    run_local_ranks(1, [&](int, std::shared_ptr<LocalGroup> group) {
      Mlp net, alone;
      DistributedDataParallel ddp(net, options_for({"local", -1, view}, group));
      EXPECT_GT(group->calls.waits, 0);
      EXPECT_EQ(group->calls.futures, 0);
      for (int step = 0; step < 2; ++step) {
        ddp(random_tensor({4, 8}, step)).pow(2).mean().backward();
        alone->forward(random_tensor({4, 8}, step)).pow(2).mean().backward();
        expect_close(gradients_of(*net), gradients_of(*alone));
      }
      EXPECT_GT(group->calls.futures, 0);
    });
  }
}

TEST(UsersGroup, WithoutInitSyncConstructionMakesNoCall) {
  run_local_ranks(1, [&](int, std::shared_ptr<LocalGroup> group) {
    auto options = options_for({"local", -1, false}, group);
    options.init_sync = false;
    Mlp net, alone;
    DistributedDataParallel ddp(net, options);
    EXPECT_EQ(group->calls.collectives + group->calls.waits + group->calls.futures, 0);
    ddp(random_tensor({4, 8}, 1)).pow(2).mean().backward();
    alone->forward(random_tensor({4, 8}, 1)).pow(2).mean().backward();
    expect_close(gradients_of(*net), gradients_of(*alone));
  });
}

// The pass waits for the hook with its lock held: what the hook asks must not wait for that lock.
TEST_P(DdpHook, AHookMayAskItsDdpAnything) {
  ranks([&](int rank, auto group) {
    Mlp net(6, 8);
    DistributedDataParallel ddp(net, options(group));
    std::atomic<int> calls{0};
    const auto ask = [&](const GradBucket& bucket) {
      const DdpLoggingData data = ddp.logging_data();
      EXPECT_EQ(ddp.core().iterations(), bucket.iteration());
      EXPECT_EQ(data.num_iterations, bucket.iteration());
      EXPECT_EQ(ddp.core().bucket_plan().size(), data.bucket_parameters.size());
      EXPECT_EQ(ddp.core().bucket_order().size(), bucket.iteration() == 0 ? 0U : net->parameters().size());
      EXPECT_GE(ddp.core().payload_bytes(), data.payload_bytes);
      EXPECT_EQ(data.comm_hook, "curious");
      ++calls;
    };
    ddp.register_comm_hook(
        [&](GradBucket& bucket) {
          ask(bucket);
          return mean(bucket);
        },
        HookTraits{.name = "curious"});
    for (int step = 0; step < 3; ++step) ddp(share(rank)).pow(2).mean().backward();
    EXPECT_EQ(calls.load(), 1 + 12 + 12);
  });
}

TEST_P(DdpHook, WhatAHookMayNotDoToItsDdpIsRefused) {
  ranks([&](int rank, auto group) {
    Mlp net(6, 8);
    DistributedDataParallel ddp(net, options(group));
    std::vector<std::string> errors;
    ddp.register_comm_hook([&](GradBucket& bucket) {
      if (bucket.index() == 0) {
        errors.push_back(error_of([&] { ddp.register_comm_hook(mean); }));
        errors.push_back(error_of([&] { ddp.core().set_bucket_order({}); }));
        errors.push_back(error_of([&] { ddp.core().replace_comm_hook(nullptr); }));
        errors.push_back(error_of([&] { ddp(share(rank)); }));
      }
      return mean(bucket);
    });
    ddp(share(rank)).pow(2).mean().backward();
    ASSERT_EQ(errors.size(), 4U);
    EXPECT_NE(errors[0].find("register_comm_hook() was called within a backward pass"), std::string::npos) << errors[0];
    EXPECT_NE(errors[1].find("set_bucket_order() was called within a backward pass"), std::string::npos) << errors[1];
    EXPECT_NE(errors[2].find("replace_comm_hook() was called within a backward pass"), std::string::npos) << errors[2];
    EXPECT_NE(errors[3].find("in its own communication hook"), std::string::npos) << errors[3];
    ddp(share(rank)).pow(2).mean().backward();
    EXPECT_EQ(ddp.core().iterations(), 2U) << "nothing is broken";
  });
}

}  // namespace
}  // namespace gradwire::testing::ddp_hook_test
