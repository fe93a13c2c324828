// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// What goes wrong ends with one clear error on every rank, and nothing hangs.
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <thread>

#include "gradwire/base/backward_errors.h"
#include "gradwire/base/error.h"
#include "gradwire/base/interrupt.h"
#include "gradwire/ddp/ddp_test_support.h"
#include "gradwire/process_group/call_group.h"

namespace gradwire::testing::ddp_error_test {
namespace {

constexpr int kWorld = 2;

class DdpError : public ::testing::TestWithParam<Setup> {
 protected:
  // What each rank's `body` threw: kind and text; empty for nothing.
  std::vector<std::string> errors_of(const std::function<void(int, std::shared_ptr<ProcessGroup>)>& body,
                                     int size = kWorld) {
    std::vector<std::string> errors(static_cast<std::size_t>(size));
    run_ranks(GetParam(), size, [&](int rank, auto group) {
      try {
        body(rank, group);
      } catch (const std::exception& error) {
        errors[static_cast<std::size_t>(rank)] = describe(error);
      }
    });
    return errors;
  }
  DdpOptions options(std::shared_ptr<ProcessGroup> group) const { return options_for(GetParam(), std::move(group)); }
};
INSTANTIATE_TEST_SUITE_P(All, DdpError, ::testing::ValuesIn(all_setups()), name_of_setup);

void expect_contains(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << "in: " << text;
}

struct ShapedImpl : torch::nn::Module {
  ShapedImpl(std::vector<at::Tensor> tensors) {
    for (std::size_t i = 0; i < tensors.size(); ++i) weights.push_back(register_parameter(concat("w", i), tensors[i]));
  }
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor sum = x.sum();
    for (const auto& weight : weights) sum = sum + weight.sum();
    return sum;
  }
  std::vector<at::Tensor> weights;
};

TEST_P(DdpError, ModulesThatDifferAreRefusedOnAllRanks) {
  const auto f = [](at::IntArrayRef sizes) { return at::zeros(sizes); };
  struct Case {
    std::vector<at::Tensor> first, second;
    std::string sentence;
  };
  const std::vector<Case> cases{
      {{f({2}), f({3, 4})},
       {f({2}), f({4, 3})},
       "'w1' is Float of sizes [3, 4] and strides [4, 1] on rank 0, and Float"},
      {{f({2}), f({3})}, {f({2}), f({3}).to(at::kDouble)}, "on rank 0, and Double of sizes [3]"},
      {{f({2}), f({3, 3})}, {f({2}), f({3, 3}).t()}, "and strides [1, 3] on rank 1"},
      {{f({2}), f({3})},
       {f({2})},
       "rank 0 has 2 parameters and buffers, rank 1 has 1: 'w1' on rank 0 (Float of sizes [3] and strides [1]) has no "
       "counterpart on rank 1"},
      {{f({2})},
       {f({2}), f({3})},
       "rank 1 has 2 parameters and buffers, rank 0 has 1: 'w1' on rank 1 (Float of sizes [3] and strides [1]) has no "
       "counterpart on rank 0"},
      {{f({2}), f({3})}, {f({2}), f({3}).to(at::kHalf), f({1})}, "'w1' is"},  // the first of several differences
  };
  for (const Case& one : cases) {
    const auto errors = errors_of(
        [&](int rank, auto group) {
          auto net = std::make_shared<ShapedImpl>(rank == 1 ? one.second : one.first);
          DistributedDataParallel<ShapedImpl> ddp(net, options(group));
        },
        3);
    for (const auto& error : errors) {
      expect_contains(error, "MismatchError");
      expect_contains(error, one.sentence);
      expect_contains(error, "on rank 1");
    }
  }
}

TEST_P(DdpError, AGradientThatIsSparseOnOneRankOnlyIsRefusedOnAllRanks) {
  for (const bool with_others : {false, true}) {
    const auto errors = errors_of([&](int rank, auto group) {
      torch::nn::Sequential net(torch::nn::Embedding(torch::nn::EmbeddingOptions(5, 3).sparse(rank == 0)));
      if (with_others) net->push_back(torch::nn::Linear(3, 2));
      DistributedDataParallel ddp(net, options(group));
    });
    for (const auto& error : errors) {
      expect_contains(error, "MismatchError");
      expect_contains(error, "'0.weight' is Float of sizes [5, 3] and strides [3, 1] with a sparse gradient on rank 0");
    }
  }
}

// A group that can be duplicated so many times.
class FewDuplicates final : public CallGroup {
 public:
  FewDuplicates(std::shared_ptr<ProcessGroup> wrapped, int duplicates)
      : CallGroup(wrapped->rank(), wrapped->size()), wrapped_(std::move(wrapped)), left_(duplicates) {}

 protected:
  std::shared_ptr<ProcessGroup> do_dup() override {
    if (left_-- <= 0) throw std::runtime_error("no memory for another group");
    return wrapped_->dup();
  }
  std::shared_ptr<Work> do_call(GroupCall& call) override { return call_on(*wrapped_, call, timeout()); }

 private:
  const std::shared_ptr<ProcessGroup> wrapped_;
  int left_;
};

// After an error in the first forward, the next one does not go on with half of the groups.
TEST(DdpStart, ThatFailedIsNotTriedAgain) {
  const gradwire::testing::Setup setup{"threads", 1, false};
  for (const int duplicates : {1, 2}) {  // the second is for the lane, the third for a delayed parameter
    run_ranks(setup, kWorld, [&](int rank, auto group) {
      auto made = options_for(setup, std::make_shared<FewDuplicates>(group, duplicates));
      made.init_sync = false;
      made.delay_all_reduce_named_params = {"layer2.weight"};
      made.param_to_hook_all_reduce = "layer1.weight";
      DistributedDataParallel ddp(Mlp(), made);
      for (int attempt = 0; attempt < 2; ++attempt)
        expect_contains(error_of([&] { ddp(random_tensor({2, 8}, rank)).sum().backward(); }), "no memory for another");
    });
  }
}

struct Translated : std::runtime_error {
  explicit Translated(const std::exception_ptr& error) : std::runtime_error(describe_error(error)) {}
  static std::string describe_error(const std::exception_ptr& error) {
    return error_of([&] { std::rethrow_exception(error); });
  }
};

// No bucket fails beside it.
TEST(DdpDelayed, AReductionThatFailsEndsTheObjectAndIsTranslated) {
  const gradwire::testing::Setup setup{"threads", 1, false};
  run_ranks(setup, kWorld, [&](int rank, auto group) {
    auto made = options_for(setup, group);
    Mlp net;
    for (const auto& parameter : net->named_parameters()) made.delay_all_reduce_named_params.push_back(parameter.key());
    made.param_to_hook_all_reduce = "layer0.weight";
    const BackwardErrors translated([](const std::exception_ptr& error) { throw Translated(error); });
    DistributedDataParallel ddp(net, made);
    ddp(random_tensor({2, 8}, rank)).sum().backward();
    const at::Tensor loss = ddp(random_tensor({2, 8}, rank)).sum();
    if (rank == 1) group->abort("enough");
    EXPECT_THROW(loss.backward(), Translated);
    const std::string error = error_of([&] { ddp.core().require_well(); });
    expect_contains(error, "enough");
    expect_contains(ddp.logging_data().error, "enough");
    expect_contains(error_of([&] { ddp(random_tensor({2, 8}, rank)); }), error);
  });
}

// enter_group() that throws leaves the object without ranks, as it was.
TEST_P(DdpError, EnterGroupMayBeCalledAgainAfterAnError) {
  run_ranks(GetParam(), kWorld, [&](int rank, auto group) {
    Mlp net;
    DistributedDataParallel ddp(net, options(group));
    ddp(random_tensor({2, 8}, rank)).sum().backward();
    ddp.core().leave_group();
    expect_contains(error_of([&] { ddp.core().enter_group({"no parameter"}); }), "set_bucket_order()");
    expect_contains(error_of([&] { ddp(random_tensor({2, 8}, rank)); }), "enter_group() first");
    ddp.core().enter_group();
    ddp.zero_grad();
    ddp(random_tensor({2, 8}, rank)).sum().backward();
    Mlp alone;
    for (int other = 0; other < kWorld; ++other)
      (alone->forward(random_tensor({2, 8}, other)).sum() / kWorld).backward();
    expect_close(gradients_of(*net), gradients_of(*alone));
  });
}

TEST_P(DdpError, AFrozenParameterOnOneRankIsRefused) {
  const auto errors = errors_of([&](int rank, auto group) {
    auto net = std::make_shared<ShapedImpl>(std::vector<at::Tensor>{at::zeros({2}), at::zeros({3})});
    net->weights[1].set_requires_grad(rank == 0);
    DistributedDataParallel<ShapedImpl> ddp(net, options(group));
  });
  for (const auto& error : errors) {
    expect_contains(error, "MismatchError");
    expect_contains(error,
                    "'w1' is Float of sizes [3] and strides [1] on rank 0, and Float of sizes [3] and strides [1] "
                    "without gradient on rank 1");
  }
}

// The rank itself notices at its next forward, and ends the wait of the others.
TEST_P(DdpError, AParameterThatOneRankFreezesLaterEndsAllRanks) {
  const auto errors = errors_of([&](int rank, auto group) {
    auto net = std::make_shared<ShapedImpl>(std::vector<at::Tensor>{at::zeros({2}), at::zeros({3})});
    DistributedDataParallel<ShapedImpl> ddp(net, options(group));
    const at::Tensor x = random_tensor({2}, rank);
    ddp(x).backward();
    net->weights[1].set_requires_grad(rank == 0);
    ddp(x).backward();
    ddp(x).backward();
  });
  for (const auto& error : errors) {
    expect_contains(error, "did not finish on rank 1 of 2: 1 of 2 parameters got no gradient: 'w1'.");
    expect_contains(error, "Frozen since the module was wrapped: 'w1'");
  }
}

// As one that a rank does not use: the average counts zeros there, and all ranks get the average.
TEST_P(DdpError, AParameterThatOneRankFreezesLaterIsUnusedThereWhereUnusedOnesAreSearched) {
  run_ranks(GetParam(), kWorld, [&](int rank, auto group) {
    auto net = std::make_shared<ShapedImpl>(std::vector<at::Tensor>{at::zeros({2}), at::zeros({3})});
    DdpOptions made = options(group);
    made.find_unused_parameters = true;
    DistributedDataParallel<ShapedImpl> ddp(net, made);
    for (int step = 0; step < 3; ++step) {
      net->weights[1].set_requires_grad(step == 0 || rank == 0);
      ddp.zero_grad();
      ddp(random_tensor({2}, rank)).backward();
      EXPECT_TRUE(at::equal(net->weights[0].grad(), at::ones({2})));
      EXPECT_TRUE(at::equal(net->weights[1].grad(), at::full({3}, step == 0 ? 1.0 : 0.5))) << step;
    }
  });
}

TEST_P(DdpError, OptionsThatDifferAreRefused) {
  const auto errors = errors_of([&](int rank, auto group) {
    auto made = options(group);
    made.bucket_cap_mb = 1 + rank;
    DistributedDataParallel ddp(Mlp(), made);
  });
  for (const auto& error : errors) {
    expect_contains(error, "MismatchError");
    expect_contains(error, "bucket_cap_mb that limits the first bucket to 2097152 bytes on rank 1");
  }
}

TEST_P(DdpError, CapsThatDifferInTheMiddleAreRefused) {
  const auto errors = errors_of([&](int rank, auto group) {
    auto made = options(group);
    made.bucket_caps_mb = {1, 2.0 + rank, 3};
    DistributedDataParallel ddp(Mlp(), made);
  });
  for (const auto& error : errors) expect_contains(error, "caps of the buckets whose hash is");
}

// Options that decide how often the group is duplicated are compared before that.
TEST_P(DdpError, OptionsThatDecideOnDuplicatesAreComparedFirst) {
  const std::vector<std::function<void(DdpOptions&)>> changes{[](DdpOptions& made) { made.lanes = 5; },
                                                              [](DdpOptions& made) {
                                                                made.delay_all_reduce_named_params = {"layer2.weight"};
                                                                made.param_to_hook_all_reduce = "layer1.weight";
                                                              }};
  for (const auto& change : changes) {
    const auto errors = errors_of([&](int rank, auto group) {
      auto made = options(group);
      if (rank == 1) change(made);
      DistributedDataParallel ddp(Mlp(), made);
    });
    for (const auto& error : errors) expect_contains(error, "MismatchError");
  }
}

// What a message calls an option is what the user wrote.
TEST_P(DdpError, OptionsThatDifferAreCalledByTheirNames) {
  const auto message = [&](const std::function<void(DdpOptions&)>& change) {
    return errors_of([&](int rank, auto group) {
             auto made = options(group);
             if (rank == 1) change(made);
             DistributedDataParallel ddp(Mlp(), made);
           })
        .front();
  };
  expect_contains(
      message([](auto& made) { made.static_graph = true; }),
      "was made with neither static_graph nor find_unused_parameters on rank 0, and with static_graph = true "
      "on rank 1");
  expect_contains(message([](auto& made) { made.find_unused_parameters = true; }),
                  "and with find_unused_parameters = true on rank 1");
  expect_contains(message([](auto& made) { made.broadcast_buffers = false; }),
                  "with broadcast_buffers = true on rank 0, and with broadcast_buffers = false on rank 1");
  expect_contains(message([](auto& made) { made.forward_sync_buffers = true; }),
                  "with no forward_sync_buffers on rank 0, and with forward_sync_buffers = true on rank 1");
  expect_contains(message([](auto& made) {
                    made.mixed_precision = MixedPrecision{at::kHalf, at::kFloat, {}};
                  }),
                  "with mixed_precision of param_dtype = Half, reduce_dtype = Float on rank 1");
}

// Which parameters there are to compare depends on the list.
TEST_P(DdpError, ListsOfNamesThatDifferAreToldBeforeModules) {
  using Names = std::vector<std::string>;
  const auto said_with = [&](const std::function<void(DdpOptions&, int rank)>& change) {
    return errors_of([&](int rank, auto group) {
      auto made = options(group);
      change(made, rank);
      DistributedDataParallel ddp(Mlp(), made);
    });
  };
  const auto ignoring = [](const Names& zero, const Names& one) {
    return [=](DdpOptions& made, int rank) { made.parameters_and_buffers_to_ignore = rank == 0 ? zero : one; };
  };
  const auto delaying = [](const Names& zero, const Names& one) {
    return [=](DdpOptions& made, int rank) {
      made.delay_all_reduce_named_params = rank == 0 ? zero : one;
      made.param_to_hook_all_reduce = "layer0.bias";
    };
  };
  const std::string ignored = "made with parameters_and_buffers_to_ignore that differ: ";
  for (const auto& [change, expected] :
       {std::pair<std::function<void(DdpOptions&, int)>, std::string>(
            ignoring({}, {"layer0.weight"}), ignored + "'layer0.weight' is named on rank 1 and not on rank 0"),
        {ignoring({"layer1.bias", "layer0.weight"}, {"layer0.weight"}),
         ignored + "'layer1.bias' is named on rank 0 and not on rank 1"},
        {delaying({"layer0.weight", "layer1.bias"}, {"layer1.bias", "layer0.weight"}),
         "param_to_hook_all_reduce that differ: the names are in another order on rank 1"},
        {delaying({"layer0.weight"}, {"layer1.bias"}), "'layer0.weight' is named on rank 0 and not on rank 1"}}) {
    for (const auto& error : said_with(change)) {
      expect_contains(error, "MismatchError");
      expect_contains(error, expected);
    }
  }
  for (const auto& error : said_with(ignoring({"layer1.bias", "layer0.bias"}, {"layer0.bias", "layer1.bias"})))
    EXPECT_EQ(error, "") << "the order of these names does not matter";
}

TEST_P(DdpError, BadOptionsAreRefusedBeforeAnyCommunication) {
  const auto refused = [&](const std::function<void(DdpOptions&)>& change, const std::string& word) {
    // Only rank 0 constructs: an error that needed the others would hang.
    const auto errors = errors_of([&](int rank, auto group) {
      if (rank != 0) return;
      auto made = options(group);
      change(made);
      DistributedDataParallel ddp(Mlp(), made);
    });
    expect_contains(errors[0], word);
  };
  refused([](DdpOptions& o) { o.lanes = 9; }, "lanes = 9");
  refused([](DdpOptions& o) { o.lanes = -2; }, "lanes = -2");
  refused([](DdpOptions& o) { o.bucket_cap_mb = 0; }, "bucket_cap_mb");
  refused([](DdpOptions& o) { o.bucket_cap_mb = -1; }, "bucket_cap_mb");
  refused([](DdpOptions& o) { o.bucket_caps_mb = {1, 0}; }, "a cap of a bucket = 0");
  refused(
      [](DdpOptions& o) {
        o.bucket_cap_mb = 1;
        o.bucket_caps_mb = {1, 2};
      },
      "not both");
  refused([](DdpOptions& o) { o.device_ids = {0}; }, "device_ids");
  refused([](DdpOptions& o) { o.device_ids = {0, 1}; }, "device_ids");
  refused([](DdpOptions& o) { o.mixed_precision = MixedPrecision{.param_dtype = at::kInt}; }, "param_dtype");
  refused([](DdpOptions& o) { o.mixed_precision = MixedPrecision{.reduce_dtype = at::kComplexFloat}; }, "reduce_dtype");
  refused([](DdpOptions& o) { o.parameters_and_buffers_to_ignore = {"nobody"}; }, "nobody");
  refused([](DdpOptions& o) { o.delay_all_reduce_named_params = {"layer0.weight"}; }, "param_to_hook_all_reduce");
  refused([](DdpOptions& o) { o.param_to_hook_all_reduce = "layer0.weight"; }, "delay_all_reduce_named_params");
  refused(
      [](DdpOptions& o) {
        o.delay_all_reduce_named_params = {"layer0.bias", "layer0.weight"};
        o.param_to_hook_all_reduce = "layer1.weight";
        o.parameters_and_buffers_to_ignore = {"layer0.weight"};
      },
      "names 'layer0.weight', and parameters_and_buffers_to_ignore names it too");
}

TEST_P(DdpError, ModulesThatCannotTrainAreRefused) {
  const auto error_for = [&](auto module) {
    return errors_of([&](int rank, auto group) {
      if (rank == 0) DistributedDataParallel ddp(module, options(group));
    })[0];
  };
  expect_contains(error_for(torch::nn::ReLU()), "no parameter that needs a gradient");
  torch::nn::Linear frozen(2, 2);
  for (auto& parameter : frozen->parameters()) parameter.set_requires_grad(false);
  expect_contains(error_for(frozen), "no parameter that needs a gradient");
  expect_contains(error_for(std::shared_ptr<MlpImpl>()), "null");
}

// One step with a hook that fails on rank 0 in its bucket 1; then what each rank's step and next step threw.
std::vector<std::string> failing_hook(const Setup& setup, const std::function<at::Tensor(GradBucket&)>& failing,
                                      std::vector<std::string>* later = nullptr) {
  std::vector<std::string> errors(kWorld);
  run_ranks(setup, kWorld, [&](int rank, auto group) {
    Mlp net(6, 8);
    auto options = options_for(setup, group);
    options.bucket_cap_mb = 0.0005;
    DistributedDataParallel ddp(net, options);
    ddp.register_comm_hook([&](GradBucket& bucket) -> at::Tensor {
      if (bucket.iteration() == 1 && bucket.index() == 1 && rank == 0) return failing(bucket);
      bucket.group().all_reduce({bucket.buffer().div_(bucket.divisor())})->wait();
      return bucket.buffer();
    });
    const auto step = [&] { ddp(random_tensor({2, 8}, rank)).sum().backward(); };
    step();
    errors[static_cast<std::size_t>(rank)] = error_of(step);
    for (const auto& parameter : net->parameters()) {
      // Away from the buckets, where a stalled peer might still write.
      if (parameter.grad().defined()) {
        EXPECT_EQ(parameter.grad().storage().nbytes(), parameter.grad().nbytes());
      }
    }
    if (later != nullptr) (*later)[static_cast<std::size_t>(rank)] = error_of(step);
  });
  return errors;
}

TEST_P(DdpError, AHookThatThrowsTellsTheOthersWhy) {
  std::vector<std::string> later(kWorld);
  const auto errors = failing_hook(
      GetParam(), [](GradBucket&) -> at::Tensor { throw std::runtime_error("the disk is full"); }, &later);
  EXPECT_EQ(errors[0], "the disk is full");
  expect_contains(errors[1], "the disk is full");
  expect_contains(errors[1], "rank 0");
  for (int rank = 0; rank < kWorld; ++rank) expect_contains(later[static_cast<std::size_t>(rank)], "the disk is full");
}

TEST_P(DdpError, AHooksResultOfTheWrongKindIsRefused) {
  const auto expect_refused = [&](const std::function<at::Tensor(GradBucket&)>& result, const std::string& part) {
    const auto errors = failing_hook(GetParam(), result);
    expect_contains(errors[0], "bucket 1");
    expect_contains(errors[0], part);
    expect_contains(errors[1], part);
  };
  expect_refused([](GradBucket& bucket) { return bucket.buffer().to(at::kDouble); }, "Double");
  expect_refused([](GradBucket&) { return at::zeros({3}); }, "[3]");
  expect_refused([](GradBucket& bucket) { return bucket.buffer().view({1, -1}); }, "must return");
  expect_refused([](GradBucket&) { return at::Tensor(); }, "undefined");
  expect_refused([](GradBucket& bucket) { return bucket.buffer().to_sparse(); }, "of layout Sparse");
}

// The thread that waits for the backward pass is interrupted, as by Ctrl-C.
TEST(DdpInterrupted, AHooksFutureThatNeverEndsIsWaitedForNoLonger) {
  static std::atomic<bool> interrupted;
  for (const int lanes : {0, 1}) {
    interrupted = false;
    const gradwire::testing::Setup setup{"threads", lanes};
    run_ranks(setup, 1, [&](int, auto group) {
      DistributedDataParallel ddp(Mlp(), options_for(setup, group));
      ddp.register_comm_hook([](GradBucket&) {
        interrupted = true;
        return c10::make_intrusive<c10::ivalue::Future>(c10::TensorType::get());
      });
      set_interrupt_check([]() noexcept { return interrupted.load(); });
      const auto before = std::chrono::steady_clock::now();
      const std::string error = error_of([&] { ddp(random_tensor({2, 8}, 1)).sum().backward(); });
      set_interrupt_check(nullptr);
      expect_contains(error, "interrupted");
      EXPECT_LT(std::chrono::steady_clock::now() - before, std::chrono::seconds(20));
    });
  }
}

// leave_group() and enter_group() exchange what answers.
TEST(DdpQuestions, MayBeAskedByAnyThreadWhileTheObjectChangesItsGroup) {
  const gradwire::testing::Setup setup{"threads", 1};
  run_ranks(setup, 1, [&](int, auto group) {
    DistributedDataParallel ddp(Mlp(), options_for(setup, group));
    std::atomic<bool> ends = false;
    std::atomic<std::uint64_t> answered = 0;
    std::thread asks([&] {
      while (!ends) {
        try {
          (void)ddp.logging_data();
          (void)ddp.core().payload_bytes();
          answered += ddp.core().bucket_plan().size();
          ddp.core().require_well();
        } catch (const InvalidArgument&) {
          // Between leave_group() and enter_group().
        }
      }
    });
    // The thread may be late on a busy machine.
    for (int i = 0; i < 200 || answered == 0; ++i) {
      ddp.core().leave_group();
      ddp.core().enter_group();
      ddp(random_tensor({2, 8}, i)).sum().backward();
    }
    ends = true;
    asks.join();
  });
}

struct BoomFunction : torch::autograd::Function<BoomFunction> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) { return x.clone(); }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*, torch::autograd::variable_list) {
    throw std::runtime_error("boom in layer two");
  }
};

struct FragileImpl : torch::nn::Module {
  explicit FragileImpl(int layers) {
    for (int i = 0; i < layers; ++i) linears.push_back(register_module(concat("layer", i), torch::nn::Linear(8, 8)));
    fill(*this, 3);
  }
  at::Tensor forward(at::Tensor x, bool breaks) {
    for (std::size_t i = 0; i < linears.size(); ++i) {
      x = torch::tanh(linears[i](x));
      if (breaks && i == 2) x = BoomFunction::apply(x);
    }
    return x;
  }
  std::vector<torch::nn::Linear> linears;
};
TORCH_MODULE(Fragile);

TEST_P(DdpError, ABackwardThatThrowsTellsTheOthersWhy) {
  const auto errors = errors_of([&](int rank, auto group) {
    Fragile net(6);
    auto made = options(group);
    made.bucket_cap_mb = 0.0001;
    DistributedDataParallel ddp(net, made);
    for (int step = 0; step < 3; ++step) ddp(random_tensor({2, 8}, rank), rank == 0 && step == 2).sum().backward();
  });
  expect_contains(errors[0], "boom in layer two");
  expect_contains(errors[1], "boom in layer two");
}

struct ForkedImpl : torch::nn::Module {
  ForkedImpl()
      : used(register_module("used", torch::nn::Linear(4, 4))),
        idle(register_module("idle", torch::nn::Linear(4, 4))) {}
  at::Tensor forward(const at::Tensor& x, bool both) { return both ? used(x) + idle(x) : used(x); }
  torch::nn::Linear used, idle;
};
TORCH_MODULE(Forked);

// Ends the running pass as a thread of another device does whose node throws.
void end_pass_with_error() {
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Winvalid-offsetof"
  constexpr std::size_t kDistance = offsetof(torch::autograd::GraphTask, exec_info_);
#pragma GCC diagnostic pop
  const auto* member = torch::autograd::get_current_graph_task_exec_info();
  auto* task = const_cast<torch::autograd::GraphTask*>(
      reinterpret_cast<const torch::autograd::GraphTask*>(reinterpret_cast<const char*>(member) - kDistance));
  ASSERT_EQ(task->id_, static_cast<std::uint64_t>(torch::autograd::get_current_graph_task_id()));
  task->has_error_ = true;
  task->future_completed_ = true;
  task->future_result_->setError(std::make_exception_ptr(std::runtime_error("the other device failed")));
}

// DDP hears of the pass for the first time when the pass has ended.
TEST_P(DdpError, APassThatEndedOnAnotherDeviceIsTold) {
  struct Ending : torch::nn::Module {
    Ending() : body(register_module("body", Mlp())) {}
    at::Tensor forward(const at::Tensor& x, bool ends) {
      const at::Tensor y = body->forward(x);
      if (ends) y.register_hook([](const at::Tensor&) { end_pass_with_error(); });  // before DDP's own hook
      return y;
    }
    Mlp body;
  };
  const auto errors = errors_of([&](int rank, auto group) {
    const auto net = std::make_shared<Ending>();
    DistributedDataParallel<Ending> ddp(net, options(group));
    ddp(random_tensor({2, 8}, rank), false).sum().backward();
    ddp(random_tensor({2, 8}, rank), rank == 1).sum().backward();
  });
  for (const auto& error : errors) expect_contains(error, "the other device failed");
}

TEST_P(DdpError, UnusedParametersAreNamedAtTheNextForward) {
  const auto errors = errors_of([&](int rank, auto group) {
    DistributedDataParallel ddp(Forked(), options(group));
    ddp(random_tensor({2, 4}, rank), false).sum().backward();
    ddp(random_tensor({2, 4}, rank), false).sum().backward();
  });
  for (const auto& error : errors) {
    expect_contains(error, "'idle.weight'");
    expect_contains(error, "'idle.bias'");
    EXPECT_EQ(error.find("'used."), std::string::npos) << error;
  }
}

// One rank uses all parameters and waits in the reduction for the other, which does not: it must hear why.
TEST_P(DdpError, AParameterUnusedOnOneRankDoesNotHangTheOthers) {
  const auto errors = errors_of([&](int rank, auto group) {
    DistributedDataParallel ddp(Forked(), options(group));
    for (int step = 0; step < 2; ++step) ddp(random_tensor({2, 4}, rank), rank == 0).sum().backward();
  });
  for (const auto& error : errors) expect_contains(error, "'idle.weight'");
}

TEST_P(DdpError, LeavingWithAnUnfinishedReductionIsTold) {
  const auto errors = errors_of([&](int rank, auto group) {
    DistributedDataParallel ddp(Forked(), options(group));
    ddp(random_tensor({2, 4}, rank), rank == 0).sum().backward();
  });
  expect_contains(errors[0], "destroyed on rank 1");
  EXPECT_EQ(errors[1], "");
}

TEST_P(DdpError, ASecondGradientInOneIterationIsNamed) {
  const auto errors = errors_of([&](int rank, auto group) {
    DistributedDataParallel ddp(Forked(), options(group));
    const at::Tensor y = ddp(random_tensor({2, 4}, rank), false).sum();
    y.backward({}, /*retain_graph=*/true);
    y.backward();
  });
  for (const auto& error : errors) expect_contains(error, "got a second gradient");
}

TEST_P(DdpError, AGraphThatChangesUnderStaticGraphIsToldSo) {
  const auto errors = errors_of([&](int rank, auto group) {
    DdpOptions with_static_graph = options(group);
    with_static_graph.static_graph = true;
    DistributedDataParallel ddp(Forked(), with_static_graph);
    const at::Tensor x = random_tensor({2, 4}, rank);
    ddp(x, false).sum().backward();
    for (int step = 0; step < 3; ++step) ddp(x, true).sum().backward();  // uses parameters that were not used before
  });
  for (const auto& error : errors) {
    expect_contains(error, "got more gradients");
    expect_contains(error, "use find_unused_parameters in its place");
  }
}

TEST_P(DdpError, AHookIsRegisteredOnceAndBeforeTraining) {
  const auto noop = [](GradBucket& bucket) { return bucket.buffer(); };
  const auto errors = errors_of([&](int rank, auto group) {
    DistributedDataParallel ddp(Mlp(), options(group));
    expect_contains(error_of([&] { ddp.register_comm_hook(std::shared_ptr<CommHook>()); }), "null");
    ddp.register_comm_hook(noop);
    expect_contains(error_of([&] { ddp.register_comm_hook(noop); }), "already");
    DistributedDataParallel replaced(Mlp(), options(group));
    replaced.replace_comm_hook(make_comm_hook(noop, {.name = "the_new_one"}));
    expect_contains(error_of([&] { replaced.register_comm_hook(noop); }), "'the_new_one' already");
    replaced.replace_comm_hook(nullptr);
    replaced.register_comm_hook(make_comm_hook(noop, {.name = "the_first"}));
    replaced(random_tensor({2, 8}, rank)).sum().backward();
    EXPECT_EQ(replaced.logging_data().comm_hook, "the_first");
    DistributedDataParallel trained(Mlp(), options(group));
    trained(random_tensor({2, 8}, rank)).sum().backward();
    expect_contains(error_of([&] { trained.register_comm_hook(noop); }), "before training");
  });
  for (const auto& error : errors) EXPECT_EQ(error, "");
}

TEST_P(DdpError, AParameterOfAnotherDtypeAfterWrappingIsNamed) {
  const auto errors = errors_of([&](int rank, auto group) {
    Mlp net;
    DistributedDataParallel ddp(net, options(group));
    if (rank == 0) net->to(at::kDouble);
    ddp(random_tensor({2, 8}, rank)).sum().backward();
  });
  for (const auto& error : errors) expect_contains(error, "'layer0.weight'");
}

TEST_P(DdpError, AGradientOfAnotherShapeIsNamed) {
  const auto errors = errors_of([&](int rank, auto group) {
    Mlp net;
    DistributedDataParallel ddp(net, options(group));
    if (rank == 0) net->linears[1]->bias.mutable_grad() = at::zeros({3, 8});
    ddp(random_tensor({2, 8}, rank)).sum().backward();
  });
  for (const auto& error : errors) expect_contains(error, "'layer1.bias'");
}

TEST_P(DdpError, AfterItsGroupWasShutDownAForwardIsRefused) {
  if (GetParam().group == "local") return;  // a user's group says nothing of it
  const auto errors = errors_of([&](int rank, auto group) {
    Mlp net;
    DistributedDataParallel ddp(net, options(group));
    ddp(random_tensor({2, 8}, rank)).sum().backward();
    group->shutdown();
    {
      const torch::NoGradGuard no_grad;
      EXPECT_TRUE(ddp(random_tensor({2, 8}, rank)).defined()) << "what needs no other rank goes on";
    }
    ddp(random_tensor({2, 8}, rank));
  });
  for (const auto& error : errors) {
    expect_contains(error, "InvalidArgument");
    expect_contains(error, "destroy_process_group()");
  }
}

}  // namespace
}  // namespace gradwire::testing::ddp_error_test
