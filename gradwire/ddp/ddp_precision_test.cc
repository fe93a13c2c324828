// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Mixed precision; what DDP tells of itself; how much memory it takes.
#include <c10/core/CPUAllocator.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/optim/sgd.h>
#include <torch/serialize.h>

#include <atomic>
#include <numeric>
#include <sstream>
#include <stdexcept>

#include "gradwire/base/error.h"
#include "gradwire/ddp/ddp_test_support.h"

namespace gradwire::testing::ddp_precision_test {
namespace {

constexpr int kWorld = 2;

// An Mlp that notes the types it computes with.
struct NotingImpl : torch::nn::Module {
  NotingImpl() {
    body = register_module("body", Mlp(3, 8));
    statistic = register_buffer("statistic", at::zeros({8}));
    count = register_buffer("count", at::zeros({1}, at::kLong));
  }
  at::Tensor forward(const at::Tensor& x) {
    input_type = x.scalar_type();
    weight_type = body->linears[0]->weight.scalar_type();
    return body->forward(x);
  }
  Mlp body{nullptr};
  at::Tensor statistic, count;
  at::ScalarType input_type = at::kFloat, weight_type = at::kFloat;
};
TORCH_MODULE(Noting);

at::Tensor input_of(int rank, int step) { return random_tensor({3, 8}, 100 * (rank + 1) + step); }

// Gradients of one rank's step as the lower precision computes them, in the type of the buckets.
std::vector<at::Tensor> low_gradients(int rank, int step, at::ScalarType low, at::ScalarType reduce) {
  Mlp net(3, 8);
  net->to(low);
  net->forward(input_of(rank, step).to(low)).square().sum().backward();
  std::vector<at::Tensor> out;
  for (const auto& gradient : gradients_of(*net)) out.push_back(gradient.to(reduce));
  return out;
}

// Summed in the buckets' type, then divided, then in float32.
std::vector<at::Tensor> low_average(int step, at::ScalarType low, at::ScalarType reduce) {
  const auto first = low_gradients(0, step, low, reduce);
  const auto second = low_gradients(1, step, low, reduce);
  std::vector<at::Tensor> out;
  for (std::size_t i = 0; i < first.size(); ++i) out.push_back(((first[i] + second[i]) / kWorld).to(at::kFloat));
  return out;
}

class DdpPrecision : public ::testing::TestWithParam<Setup> {
 protected:
  static DdpOptions options(const std::shared_ptr<ProcessGroup>& group) {
    DdpOptions made = options_for(GetParam(), group);
    made.bucket_cap_mb = 0.0001;
    return made;
  }
};

TEST_P(DdpPrecision, ComputesAndReducesInTheTypesAskedForAndStepsInFloat32) {
  for (const at::ScalarType low : {at::kBFloat16, at::kHalf}) {
    for (const bool wide : {false, true}) {
      run_ranks(GetParam(), kWorld, [&](int rank, auto group) {
        auto made = options(group);
        made.mixed_precision = MixedPrecision{.param_dtype = low, .buffer_dtype = at::kBFloat16};
        if (wide) made.mixed_precision->reduce_dtype = at::kFloat;
        const at::ScalarType reduce = wide ? at::kFloat : low;
        Noting net;
        DistributedDataParallel ddp(net, made);
        EXPECT_EQ(net->statistic.scalar_type(), at::kBFloat16);
        EXPECT_EQ(net->count.scalar_type(), at::kLong);
        const at::Tensor before = net->body->linears[0]->weight.detach().clone();
        for (int step = 0; step < 3; ++step) {
          SCOPED_TRACE(concat("rank ", rank, ", step ", step, ", ", low, " in buckets of ", reduce));
          ddp.zero_grad();
          ddp(input_of(rank, step)).square().sum().backward();
          EXPECT_EQ(net->input_type, low);
          EXPECT_EQ(net->weight_type, low);
          EXPECT_TRUE(at::equal(net->body->linears[0]->weight, before)) << "its own memory again";
          const auto expected = low_average(step, low, reduce);
          const auto mine = gradients_of(*net);
          for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(at::equal(mine[i], expected[i])) << i;
        }
        torch::optim::SGD optimizer(ddp.parameters(), 0.5);
        optimizer.step();
        const at::Tensor expected = before - 0.5 * net->body->linears[0]->weight.grad();
        EXPECT_TRUE(at::allclose(net->body->linears[0]->weight, expected, 0, 1e-7));
      });
    }
  }
}

// Gradients of local passes are kept in float32, and so is what is added to them.
TEST_P(DdpPrecision, AccumulatesWithoutSynchronization) {
  run_ranks(GetParam(), kWorld, [&](int rank, auto group) {
    auto made = options(group);
    made.mixed_precision = MixedPrecision{.param_dtype = at::kBFloat16, .reduce_dtype = at::kFloat};
    Noting net;
    DistributedDataParallel ddp(net, made);
    for (int round = 0; round < 2; ++round) {
      ddp.zero_grad(round == 0);
      {
        const auto local = ddp.no_sync();
        ddp(input_of(rank, 0)).square().sum().backward();
      }
      EXPECT_EQ(net->body->linears[1]->weight.scalar_type(), at::kFloat);
      const auto own = low_gradients(rank, 0, at::kBFloat16, at::kFloat);
      EXPECT_TRUE(at::equal(net->body->linears[1]->weight.grad(), own[2]));
      ddp(input_of(rank, 1)).square().sum().backward();
      const auto first = low_average(0, at::kBFloat16, at::kFloat);
      const auto second = low_average(1, at::kBFloat16, at::kFloat);
      const auto mine = gradients_of(*net);
      for (std::size_t i = 0; i < mine.size(); ++i)
        EXPECT_TRUE(at::allclose(mine[i], first[i] + second[i], 1e-6, 1e-6)) << "parameter " << i;
    }
  });
}

TEST_P(DdpPrecision, HooksGetBucketsOfTheReducedType) {
  run_ranks(GetParam(), kWorld, [&](int rank, auto group) {
    auto made = options(group);
    made.mixed_precision = MixedPrecision{.param_dtype = at::kBFloat16};
    made.find_unused_parameters = true;
    Noting net;
    DistributedDataParallel ddp(net, made);
    ddp.register_comm_hook([](GradBucket& bucket) {
      EXPECT_EQ(bucket.buffer().scalar_type(), at::kBFloat16);
      bucket.group().all_reduce({bucket.buffer()})->wait();
      return bucket.buffer().div_(bucket.divisor());
    });
    ddp(input_of(rank, 0)).square().sum().backward();
    const auto expected = low_average(0, at::kBFloat16, at::kBFloat16);
    const auto mine = gradients_of(*net);
    for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(at::equal(mine[i], expected[i])) << i;
  });
}

// A forward that no backward pass follows leaves no rank in the lower precision for good.
TEST_P(DdpPrecision, ForwardsWithoutABackwardPass) {
  run_ranks(GetParam(), kWorld, [&](int rank, auto group) {
    auto made = options(group);
    made.mixed_precision = MixedPrecision{.param_dtype = at::kBFloat16};
    Noting net;
    DistributedDataParallel ddp(net, made);
    {
      const torch::NoGradGuard no_grad;
      EXPECT_EQ(ddp(input_of(rank, 0)).scalar_type(), at::kBFloat16);
      EXPECT_EQ(net->body->linears[0]->weight.scalar_type(), at::kFloat);
    }
    (void)ddp(input_of(rank, 0));
    ddp(input_of(rank, 1)).square().sum().backward();
    EXPECT_EQ(net->body->linears[0]->weight.scalar_type(), at::kFloat);
    const auto expected = low_average(1, at::kBFloat16, at::kBFloat16);
    const auto mine = gradients_of(*net);
    for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(at::equal(mine[i], expected[i])) << i;
  });
}

// A module that keeps its last output drops the graph of the forward before in the middle of the next one.
TEST_P(DdpPrecision, AForwardThatDropsTheLastOutputsStaysInTheLowerPrecision) {
  struct Recurrent : torch::nn::Module {
    Recurrent() {
      cell = register_module("cell", torch::nn::Linear(8, 8));
      head = register_module("head", torch::nn::Linear(8, 8));
      fill(*this, 4);
    }
    std::pair<at::Tensor, at::Tensor> forward(const at::Tensor& x) {
      state = torch::tanh(cell(state.defined() ? x + state.detach() : x));
      types.push_back(head->weight.scalar_type());
      return {head(state), state};
    }
    torch::nn::Linear cell{nullptr}, head{nullptr};
    at::Tensor state;
    std::vector<at::ScalarType> types;
  };
  run_ranks(GetParam(), kWorld, [&](int rank, auto group) {
    auto made = options(group);
    made.mixed_precision = MixedPrecision{.param_dtype = at::kBFloat16};
    const auto net = std::make_shared<Recurrent>();
    DistributedDataParallel<Recurrent> ddp(net, made);
    for (int step = 0; step < 3; ++step) (void)ddp(input_of(rank, step));
    ddp(input_of(rank, 3)).first.sum().backward();
    EXPECT_EQ(net->types, std::vector<at::ScalarType>(4, at::kBFloat16));
    EXPECT_EQ(net->head->weight.scalar_type(), at::kFloat);
    EXPECT_TRUE(net->cell->weight.grad().defined());
  });
}

// DDP casts the arguments in copies of its own, so a reference to one of them would outlive what it refers to.
TEST_P(DdpPrecision, AReferenceToAnArgumentIsReturnedAsAValue) {
  struct Skip : torch::nn::Module {
    Skip() { weight = register_parameter("weight", at::ones({8})); }
    const std::vector<at::Tensor>& forward(std::vector<at::Tensor>& inputs) {
      inputs[0] = inputs[0] * weight;
      return inputs;
    }
    at::Tensor weight;
  };
  run_ranks(GetParam(), kWorld, [&](int rank, auto group) {
    auto made = options(group);
    made.mixed_precision = MixedPrecision{.param_dtype = at::kBFloat16};
    DistributedDataParallel<Skip> ddp(std::make_shared<Skip>(), made);
    std::vector<at::Tensor> inputs{input_of(rank, 0)};
    auto outputs = ddp(inputs);
    static_assert(std::is_same_v<decltype(outputs), std::vector<at::Tensor>>);
    static_assert(std::is_same_v<decltype(ddp(inputs)), std::vector<at::Tensor>>);
    EXPECT_EQ(outputs.at(0).scalar_type(), at::kBFloat16);
    outputs.at(0).sum().backward();
    EXPECT_EQ(ddp.module()->weight.grad().scalar_type(), at::kFloat);
  });
}

// Two forwards and one backward pass of their sum, with something between the forwards.
TEST_P(DdpPrecision, WhatComesBetweenTwoForwardsOfOneBackwardPassLosesNoGradient) {
  for (const bool penalty : {false, true}) {
    run_ranks(GetParam(), kWorld, [&](int rank, auto group) {
      auto made = options(group);
      made.mixed_precision = MixedPrecision{.param_dtype = at::kBFloat16, .reduce_dtype = at::kFloat};
      Noting net;
      DistributedDataParallel ddp(net, made);
      const auto loss_of = [](const at::Tensor& first, const at::Tensor& second) {
        return first.square().sum() + second.square().sum();
      };
      for (int step = 0; step < 3; ++step) {
        SCOPED_TRACE(concat("rank ", rank, ", step ", step, penalty ? ", a penalty" : ", a forward without gradients"));
        ddp.zero_grad();
        const at::Tensor x = input_of(rank, step).requires_grad_();
        const at::Tensor first = ddp(x);
        if (penalty) {
          torch::autograd::grad({first.sum()}, {x}, {}, /*retain_graph=*/true, /*create_graph=*/true);
        } else {
          const torch::NoGradGuard no_grad;
          ddp(input_of(rank, 7));
        }
        EXPECT_EQ(net->body->linears[0]->weight.scalar_type(), at::kBFloat16) << "a backward pass may come";
        loss_of(first, ddp(input_of(rank, step + 3))).backward();
        EXPECT_EQ(net->body->linears[0]->weight.scalar_type(), at::kFloat);
        std::vector<at::Tensor> expected;
        for (int other = 0; other < kWorld; ++other) {
          Mlp alone(3, 8);
          alone->to(at::kBFloat16);
          loss_of(alone->forward(input_of(other, step).to(at::kBFloat16)),
                  alone->forward(input_of(other, step + 3).to(at::kBFloat16)))
              .backward();
          const auto gradients = gradients_of(*alone);
          for (std::size_t i = 0; i < gradients.size(); ++i) {
            const at::Tensor mine = gradients[i].to(at::kFloat) / kWorld;
            if (other == 0) expected.push_back(mine);
            if (other > 0) expected[i] = expected[i] + mine;
          }
        }
        expect_close(gradients_of(*net), expected, 1e-3);
      }
    });
  }
}

// The first backward pass gives the parameters their own dtype back, and with the third forward they get other
// accumulators than those to which the second forward's backward pass leads.
TEST_P(DdpPrecision, ABackwardPassThatIsLateIsReducedToo) {
  run_ranks(GetParam(), kWorld, [&](int rank, auto group) {
    auto made = options(group);
    made.mixed_precision = MixedPrecision{.param_dtype = at::kBFloat16, .reduce_dtype = at::kFloat};
    Noting net;
    DistributedDataParallel ddp(net, made);
    const at::Tensor first = ddp(input_of(rank, 0)).square().sum();
    const at::Tensor second = ddp(input_of(rank, 1)).square().sum();
    first.backward();
    const at::Tensor third = ddp(input_of(rank, 2)).square().sum();
    second.backward();
    EXPECT_EQ(ddp.core().iterations(), 2U);
    third.backward();
    EXPECT_EQ(ddp.core().iterations(), 3U);
    std::vector<at::Tensor> expected = low_average(0, at::kBFloat16, at::kFloat);
    for (const int step : {1, 2}) {
      const auto more = low_average(step, at::kBFloat16, at::kFloat);
      for (std::size_t i = 0; i < expected.size(); ++i) expected[i] = expected[i] + more[i];
    }
    expect_close(gradients_of(*net), expected, 1e-3);
  });
}

struct FailingImpl : torch::nn::Module {
  FailingImpl() : body(register_module("body", Mlp(2, 8))) {}
  at::Tensor forward(const at::Tensor& x, const std::string& fails) {
    const at::Tensor y = body->forward(x);
    if (fails == "forward") throw std::runtime_error("a bad batch");
    if (fails == "backward") y.register_hook([](const at::Tensor&) { throw std::runtime_error("a bad gradient"); });
    return y;
  }
  Mlp body;
};
TORCH_MODULE(Failing);

at::ScalarType saved_type(const Failing& net) {
  std::stringstream file;
  torch::save(net->body, file);
  torch::serialize::InputArchive archive, layer;
  archive.load_from(file);
  archive.read("layer0", layer);
  at::Tensor weight;
  layer.read("weight", weight);
  return weight.scalar_type();
}

// However a forward or a backward pass ends, what is saved then has the parameters' own type.
TEST_P(DdpPrecision, NothingIsLeftOfTheLowerPrecisionWhereNoBackwardPassCanCome) {
  run_ranks(GetParam(), kWorld, [&](int rank, auto group) {
    auto made = options(group);
    made.mixed_precision = MixedPrecision{.param_dtype = at::kBFloat16};
    Failing net;
    DistributedDataParallel ddp(net, made);
    const auto weight_type = [&] { return net->body->linears[0]->weight.scalar_type(); };
    ddp(input_of(rank, 0), "").sum().backward();
    EXPECT_EQ(error_of([&] { ddp(input_of(rank, 0), "forward"); }), "a bad batch");
    EXPECT_EQ(weight_type(), at::kFloat) << "after a forward that threw";
    EXPECT_EQ(saved_type(net), at::kFloat);
    (void)ddp(input_of(rank, 1), "");
    EXPECT_EQ(weight_type(), at::kFloat) << "after an output that was thrown away";
    EXPECT_EQ(saved_type(net), at::kFloat);
    {
      const at::Tensor loss = ddp(input_of(rank, 2), "").square().sum();
      EXPECT_EQ(error_of([&] { ddp(input_of(rank, 0), "forward"); }), "a bad batch");
      EXPECT_EQ(weight_type(), at::kBFloat16) << "the earlier forward's backward pass may come";
      std::stringstream file;
      EXPECT_NE(error_of([&] { torch::save(ddp, file); }).find("lower precision"), std::string::npos);
    }
    EXPECT_EQ(weight_type(), at::kFloat);
    std::stringstream file;
    torch::save(ddp, file);
    ddp.zero_grad();
    ddp(input_of(rank, 3), "").sum().backward();
    EXPECT_EQ(weight_type(), at::kFloat) << "and training goes on";
    EXPECT_EQ(ddp.core().iterations(), 2U);
    EXPECT_NE(error_of([&] { ddp(input_of(rank, 4), "backward").sum().backward(); }), "");
    EXPECT_EQ(weight_type(), at::kFloat) << "after a backward pass that threw";
  });
}

TEST_P(DdpPrecision, ChangesThatWouldBeLostAreToldAndParametersSurviveTheWrapper) {
  run_ranks(GetParam(), kWorld, [&](int rank, auto group) {
    auto made = options(group);
    made.mixed_precision = MixedPrecision{.param_dtype = at::kBFloat16};
    Noting net;
    const at::Tensor before = net->body->linears[0]->weight.detach().clone();
    {
      at::Tensor output;  // goes after DDP
      DistributedDataParallel ddp(net, made);
      output = ddp(input_of(rank, 0));
      EXPECT_EQ(net->body->linears[0]->weight.scalar_type(), at::kBFloat16);
    }
    EXPECT_TRUE(at::equal(net->body->linears[0]->weight, before));
    DistributedDataParallel ddp(net, made);
    const at::Tensor loss = ddp(input_of(rank, 0)).square().sum();
    {
      const torch::NoGradGuard no_grad;
      net->body->linears[2]->bias.add_(1);
    }
    const std::string error = error_of([&] { loss.backward(); });
    EXPECT_NE(error.find("the change is lost"), std::string::npos) << error;
    EXPECT_EQ(net->body->linears[2]->bias.scalar_type(), at::kFloat);
  });
}

// Types without which nothing changes, and parameters that are not real floating-point ones.
TEST_P(DdpPrecision, OnlyTheReductionMayHaveAnotherType) {
  run_ranks(GetParam(), kWorld, [&](int rank, auto group) {
    auto made = options(group);
    made.mixed_precision = MixedPrecision{.reduce_dtype = at::kDouble};
    Noting net;
    DistributedDataParallel ddp(net, made);
    ddp(input_of(rank, 0)).square().sum().backward();
    const auto expected = low_average(0, at::kFloat, at::kDouble);
    const auto mine = gradients_of(*net);
    for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(at::equal(mine[i], expected[i])) << i;
  });
}

TEST_P(DdpPrecision, LoggingDataTellsWhatHappened) {
  run_ranks(GetParam(), kWorld, [&](int rank, auto group) {
    auto made = options(group);
    made.static_graph = true;
    Mlp net;
    net->register_parameter("spare", at::zeros({5}));
    DistributedDataParallel ddp(net, made);
    ddp.register_comm_hook([](GradBucket& bucket) { return bucket.buffer(); }, HookTraits{.name = "identity"});
    const DdpLoggingData first = ddp.logging_data();
    EXPECT_EQ(first.bucket_sizes, std::vector<std::size_t>{(3 * 72 + 5) * 4});
    EXPECT_FALSE(first.has_rebuilt_buckets);
    EXPECT_EQ(first.average.backward_comm.count(), 0);
    for (int step = 0; step < 3; ++step) ddp(input_of(rank, step)).sum().backward();
    const DdpLoggingData data = ddp.logging_data();
    EXPECT_EQ(data.rank, rank);
    EXPECT_EQ(data.world_size, kWorld);
    EXPECT_EQ(data.comm_hook, "identity");
    EXPECT_EQ(data.num_iterations, 3U);
    EXPECT_EQ(data.num_parameter_tensors, 7U);
    EXPECT_EQ(data.total_parameter_size_bytes, std::size_t{(3 * 72 + 5) * 4});
    EXPECT_EQ(data.dtypes, std::vector<std::string>{"Float"});
    EXPECT_EQ(data.unused_parameters, std::vector<std::string>{"spare"});
    EXPECT_EQ(data.unused_parameter_size_bytes, 20U);
    EXPECT_TRUE(data.has_rebuilt_buckets);
    EXPECT_EQ(data.rebuilt_bucket_sizes.size(), ddp.core().bucket_plan().size());
    EXPECT_EQ(std::accumulate(data.rebuilt_bucket_sizes.begin(), data.rebuilt_bucket_sizes.end(), std::size_t{0}),
              data.total_parameter_size_bytes);
    EXPECT_EQ(data.bucket_order, ddp.core().bucket_order());
    EXPECT_EQ(data.prev_iteration_grad_ready_order.size(), 7U);
    EXPECT_EQ(data.bucket_parameters.size(), data.rebuilt_bucket_sizes.size());
    EXPECT_GT(data.last.forward_compute.count(), 0);
    EXPECT_GT(data.average.backward_comm.count(), 0);
    EXPECT_GE(data.last.backward_comm, data.last.backward_compute_comm_overlap);
    EXPECT_EQ(data.error, "");
    const auto map = data.as_map();
    EXPECT_EQ(map.at("comm_hook"), "identity");
    EXPECT_EQ(map.at("unused_parameters"), "spare");
    EXPECT_EQ(map.at("num_iterations"), "3");
    EXPECT_EQ(map.at("static_graph"), "1");
    EXPECT_EQ(map.at("avg_backward_comm_time"), std::to_string(data.average.backward_comm.count()));
  });
}

INSTANTIATE_TEST_SUITE_P(Groups, DdpPrecision, ::testing::ValuesIn(all_setups()), name_of_setup);

// Counts what tensors take that are made while a Scope lives.
class CountingAllocator final : public c10::Allocator {
 public:
  class Scope final {
   public:
    explicit Scope(CountingAllocator& counter) : before_(counter.inner_) { c10::SetCPUAllocator(&counter, kPriority); }
    ~Scope() { c10::SetCPUAllocator(before_, kPriority); }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    static constexpr std::uint8_t kPriority = 100;
    c10::Allocator* const before_;
  };

  c10::DataPtr allocate(std::size_t bytes) override {
    auto* block = std::make_unique<Block>(Block{this, inner_->allocate(bytes), bytes}).release();
    const std::int64_t live = live_ += static_cast<std::int64_t>(bytes);
    std::int64_t peak = peak_;
    while (live > peak && !peak_.compare_exchange_weak(peak, live)) {
    }
    return {block->memory.get(), block, &release, c10::kCPU};
  }
  void copy_data(void* to, const void* from, std::size_t count) const override { inner_->copy_data(to, from, count); }

  // Begins to look for a peak; what is live now does not count.
  void restart() {
    start_ = live_.load();
    peak_ = live_.load();
  }
  std::int64_t peak() const { return peak_ - start_; }

 private:
  struct Block {
    CountingAllocator* owner;
    c10::DataPtr memory;
    std::size_t bytes;
  };
  static void release(void* context) {
    const std::unique_ptr<Block> block(static_cast<Block*>(context));
    block->owner->live_ -= static_cast<std::int64_t>(block->bytes);
  }
  c10::Allocator* const inner_ = c10::GetCPUAllocator();
  std::atomic<std::int64_t> live_{0}, peak_{0}, start_{0};
};

constexpr int kWide = 256;

// The peak of the tensors' memory over a step without DDP.
std::int64_t peak_of_local_step(CountingAllocator& counter) {
  Mlp net(4, kWide);
  const auto step = [&](int number) {
    net->zero_grad();
    net->forward(random_tensor({2, kWide}, number)).sum().backward();
  };
  step(0);
  net->zero_grad();
  counter.restart();
  step(1);
  return counter.peak();
}

// Beside what the step takes by itself, DDP has the buckets: the gradients once, from the group's allocate(), which is
// not counted here; and nothing worth mentioning among the tensors.
TEST(DdpMemory, PeakIsOneBucketCopyOfTheGradients) {
  // Tensors of a thread's caches may outlive this test.
  static CountingAllocator* const counter = std::make_unique<CountingAllocator>().release();
  const CountingAllocator::Scope counted(*counter);
  const std::int64_t local = peak_of_local_step(*counter);
  constexpr std::int64_t kGradients = std::int64_t{4} * (kWide + 1) * kWide * 4;
  EXPECT_GE(local, kGradients) << "the counter sees the gradients";
  for (const bool view : {false, true}) {
    for (const bool hook : {false, true}) {
      const gradwire::testing::Setup setup{"threads", 1, view};
      std::atomic<std::int64_t> peak{0}, buckets{0};
      run_ranks(setup, kWorld, [&](int rank, auto group) {
        auto options = options_for(setup, group);
        options.bucket_cap_mb = 0.1;
        Mlp net(4, kWide);
        DistributedDataParallel ddp(net, options);
        if (hook) {
          ddp.register_comm_hook([](GradBucket& bucket) {
            bucket.group().all_reduce({bucket.buffer().div_(bucket.divisor())})->wait();
            return bucket.buffer();
          });
        }
        const auto step = [&](int number) {
          ddp.zero_grad();
          ddp(random_tensor({2, kWide}, 10 * rank + number)).sum().backward();
        };
        for (int number = 0; number < 3; ++number) step(number);
        ddp.zero_grad();
        group->barrier()->wait();
        if (rank == 0) counter->restart();
        group->barrier()->wait();
        step(3);
        group->barrier()->wait();
        if (rank == 0) {
          peak = counter->peak();
          for (const std::size_t bytes : ddp.logging_data().rebuilt_bucket_sizes)
            buckets += static_cast<std::int64_t>(bytes);
        }
      });
      EXPECT_EQ(buckets, kGradients);
      // What must hold: no more than one copy of the gradients beside the local step.
      EXPECT_LE(peak + kWorld * buckets, kWorld * (local + kGradients)) << "view " << view << ", hook " << hook;
      // What does: gradients lie in the buckets, and outside of them only while autograd hands them over.
      EXPECT_LE(peak, kWorld * (local - kGradients + kGradients / 2)) << "view " << view << ", hook " << hook;
    }
  }
}

}  // namespace
}  // namespace gradwire::testing::ddp_precision_test
