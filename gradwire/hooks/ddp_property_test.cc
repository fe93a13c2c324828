// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Random models, buckets, hooks and numbers of ranks: gradients are those of an oracle that sees every rank's data.
// A failure prints its seed and what that made; GRADWIRE_PROPERTY_SEED=<seed> runs that case alone.
#include <array>
#include <cstdlib>
#include <random>

#include "gradwire/hooks/default_hooks.h"
#include "gradwire/hooks/hook_test_support.h"
#include "gradwire/hooks/mixed_precision_hooks.h"

namespace gradwire::testing {
namespace {

constexpr int kCases = 80;
constexpr int kSteps = 4;

enum class Layer { linear, single_precision, complex, sparse_slice, channels_last, shared, branch };

// All of a case, from its seed.
struct Case {
  explicit Case(std::uint64_t from) : seed(from) {
    std::mt19937_64 random(seed);
    const auto below = [&](int n) { return static_cast<int>(random() % static_cast<std::uint64_t>(n)); };
    world = 1 + below(4);
    width = 2 + below(5);
    const int depth = 1 + below(7);
    for (int i = 0; i < depth; ++i) {
      layers.push_back(static_cast<Layer>(below(7)));
      branches = branches || layers.back() == Layer::branch;
    }
    layers.insert(layers.begin() + below(depth + 1), Layer::linear);  // something that all ranks always use
    setup.group = below(4) == 0 ? "local" : "threads";
    setup.lanes = setup.group == "local" ? -1 : below(4);
    setup.view = below(2) == 0;
    cap_bytes = below(3) == 0 ? 0 : 8 << below(8);
    graph = branches ? 1 + below(2) : below(3);
    hook = below(4);
    zero = below(3);
    local_passes = below(3);
  }
  std::string text() const {
    std::vector<int> kinds;
    for (const Layer layer : layers) kinds.push_back(static_cast<int>(layer));
    return concat("GRADWIRE_PROPERTY_SEED=", seed, ": ", world, " ranks over ", setup.group, ", ", setup.lanes,
                  " lanes, ", setup.view ? "views" : "no views", ", width ", width, ", layers ", join(kinds),
                  ", buckets of ", cap_bytes, " bytes, kind of graph ", graph, ", hook ", hook, ", zero_grad ", zero,
                  ", ", local_passes, " local passes");
  }
  // Whether `rank` goes through branch `layer` in `step`; in a fixed graph always or never.
  bool takes(std::size_t layer, int rank, int step) const {
    std::mt19937_64 random(seed + 31 * layer + 1009 * static_cast<std::uint64_t>(rank) +
                           (graph == 2 ? 0 : 65537 * static_cast<std::uint64_t>(step)));
    return random() % 2 == 0;
  }
  void apply(DdpOptions& options) const {
    if (cap_bytes > 0) options.bucket_cap_mb = cap_bytes / 1048576.0;
    options.find_unused_parameters = graph == 1;
    options.static_graph = graph == 2;
  }
  template <class Ddp>
  void register_hook(Ddp& ddp) const {
    if (hook == 1) ddp.register_comm_hook(make_allreduce_hook());
    if (hook == 2) ddp.register_comm_hook(make_reduce_in_dtype_hook(at::kDouble));
    if (hook == 3) {
      ddp.register_comm_hook([](GradBucket& bucket) {
        const auto work = bucket.group().all_reduce({bucket.buffer()});
        work->wait();
        return bucket.buffer().clone().div_(bucket.divisor());
      });
    }
  }

  std::uint64_t seed;
  int world, width;
  std::vector<Layer> layers;
  bool branches = false;
  Setup setup;
  int cap_bytes, graph, hook, zero, local_passes;  // graph: 0 every parameter, 1 searched, 2 fixed
};

struct RandomNetImpl : torch::nn::Module {
  explicit RandomNetImpl(const Case& made) : of(made) {
    for (std::size_t i = 0; i < of.layers.size(); ++i) weights.push_back(make(i));
  }
  at::Tensor forward(at::Tensor h, int rank, int step) {
    for (std::size_t i = 0; i < of.layers.size(); ++i) {
      if (of.layers[i] == Layer::branch && !of.takes(i, rank, step)) continue;
      h = torch::tanh(apply(of.layers[i], weights[i], h)) + 0.5 * h;
    }
    return h.square().sum() / of.world;
  }

 private:
  at::Tensor make(std::size_t i) {
    const int w = of.width;
    const int seed = static_cast<int>(of.seed % 10007) * 100 + static_cast<int>(i);
    const at::Tensor square = random_tensor({w, w}, seed).to(at::kDouble);
    const std::string name = concat("p", i);
    switch (of.layers[i]) {
      case Layer::single_precision:
        return register_parameter(name, square.to(at::kFloat));
      case Layer::complex:
        return register_parameter(name, at::complex(square, square.t().contiguous()));
      case Layer::sparse_slice:  // not dense in memory
        return register_parameter(name, random_tensor({w, 2 * w}, seed).to(at::kDouble).slice(1, 0, 2 * w, 2));
      case Layer::channels_last:
        return register_parameter(
            name, random_tensor({1, 2, w, w}, seed).to(at::kDouble).contiguous(at::MemoryFormat::ChannelsLast));
      case Layer::shared:
        for (std::size_t j = 0; j < i; ++j)
          if (of.layers[j] == Layer::linear) return weights[j];
        break;
      default:
        break;
    }
    return register_parameter(name, square);
  }
  static at::Tensor apply(Layer layer, const at::Tensor& weight, const at::Tensor& h) {
    if (layer == Layer::single_precision) return torch::matmul(h.to(at::kFloat), weight).to(at::kDouble);
    if (layer == Layer::complex) return at::real(torch::matmul(h.to(at::kComplexDouble), weight));
    if (layer == Layer::channels_last) return torch::matmul(h, weight.sum(1).squeeze(0));
    return torch::matmul(h, weight);
  }
  const Case of;
  std::vector<at::Tensor> weights;
};
TORCH_MODULE(RandomNet);

at::Tensor input_of(const Case& of, int rank, int step, int pass) {
  return random_tensor({2, of.width}, 10000 * rank + 100 * step + pass).to(at::kDouble);
}

// The .grad of every step, as all ranks must have it.
std::vector<std::vector<at::Tensor>> oracle(const Case& of) {
  RandomNet net(of);
  std::vector<std::vector<at::Tensor>> steps;
  for (int step = 0; step < kSteps; ++step) {
    if (of.zero > 0) net->zero_grad(of.zero == 1);
    for (int pass = 0; pass <= of.local_passes; ++pass)
      for (int rank = 0; rank < of.world; ++rank) net->forward(input_of(of, rank, step, pass), rank, step).backward();
    steps.push_back(gradients_of(*net));
  }
  return steps;
}

// A mean of means: forward() divides by the number of ranks, which DDP does too.
void run(const Case& of) {
  SCOPED_TRACE(of.text());
  const auto expected = oracle(of);
  run_ranks(of.setup, of.world, [&](int rank, auto group) {
    auto options = options_for(of.setup, group);
    of.apply(options);
    RandomNet net(of);
    DistributedDataParallel ddp(net, options);
    of.register_hook(ddp);
    for (int step = 0; step < kSteps; ++step) {
      if (of.zero > 0) ddp.zero_grad(of.zero == 1);
      const auto loss = [&](int pass) { return ddp(input_of(of, rank, step, pass), rank, step) * of.world; };
      for (int pass = 0; pass < of.local_passes; ++pass) {
        const auto local = ddp.no_sync();
        loss(pass).backward();
      }
      loss(of.local_passes).backward();
      const auto mine = gradients_of(*net);
      const auto& wanted = expected[static_cast<std::size_t>(step)];
      for (std::size_t i = 0; i < mine.size(); ++i) {
        ASSERT_EQ(mine[i].defined(), wanted[i].defined())
            << "rank " << rank << ", step " << step << ", parameter " << i;
        if (!mine[i].defined()) continue;
        const double tolerance = mine[i].scalar_type() == at::kFloat ? 1e-4 : 1e-6;
        EXPECT_TRUE(at::allclose(mine[i], wanted[i], tolerance, tolerance))
            << "rank " << rank << ", step " << step << ", parameter " << i << ": off by "
            << (mine[i] - wanted[i]).abs().max().item<double>();
      }
    }
  });
}

TEST(DdpProperty, GradientsAreThoseOfTheWholeBatch) {
  if (const char* seed = std::getenv("GRADWIRE_PROPERTY_SEED")) {
    run(Case(std::strtoull(seed, nullptr, 10)));
    return;
  }
  for (std::uint64_t seed = 1; seed <= kCases && !HasFailure(); ++seed) run(Case(seed));
}

}  // namespace
}  // namespace gradwire::testing
