// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "tests/properties/random_training_test_support.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <random>

#include "gradwire/hooks/debugging_hooks.h"
#include "gradwire/hooks/default_hooks.h"
#include "gradwire/hooks/optimizer_overlap_hooks.h"
#include "gradwire/hooks/post_local_sgd_hook.h"
#include "gradwire/hooks/registry.h"

namespace gradwire::testing {
namespace {

constexpr std::int64_t kBatch = 3;

// Numbers from 0 to `bound` - 1; not std::uniform_int_distribution, which differs between libraries.
class Draw {
 public:
  explicit Draw(std::uint64_t seed) : engine_(seed) {}
  int below(int bound) { return static_cast<int>(engine_() % static_cast<std::uint64_t>(bound)); }
  bool one_in(int n) { return below(n) == 0; }

 private:
  std::mt19937_64 engine_;
};

constexpr std::array<const char*, 5> kKindNames = {"linear", "scale", "low_rank", "complex_product", "convolution"};
constexpr std::array<const char*, 3> kGraphNames = {"every_parameter", "searched", "fixed"};

LayerPlan draw_layer(Draw& draw, std::int64_t in, bool single_precision) {
  LayerPlan layer;
  layer.kind = static_cast<LayerKind>(draw.below(5));
  layer.in = in;
  const bool changes_width = layer.kind == LayerKind::linear || layer.kind == LayerKind::low_rank;
  layer.out = changes_width ? 1 + draw.below(9) : in;
  layer.branch = draw.one_in(3);
  if (layer.kind == LayerKind::complex_product) {
    layer.dtype = at::kComplexDouble;
  } else if (single_precision && draw.one_in(2)) {
    layer.dtype = at::kFloat;
  }
  return layer;
}

// An earlier layer of the same parameters, or none.
int draw_shared(Draw& draw, const std::vector<LayerPlan>& layers, const LayerPlan& layer) {
  if (!draw.one_in(3)) return -1;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const LayerPlan& other = layers[i];
    if (other.shares < 0 && other.kind == layer.kind && other.in == layer.in && other.out == layer.out &&
        other.dtype == layer.dtype)
      return static_cast<int>(i);
  }
  return -1;
}

at::Tensor all_gather_and_sum(GradBucket& bucket) {
  const at::Tensor mine = bucket.buffer() / bucket.divisor();
  std::vector<at::Tensor> all;
  for (int rank = 0; rank < bucket.group().size(); ++rank) all.push_back(at::empty_like(mine));
  bucket.group().all_gather({all}, {mine})->wait();
  at::Tensor sum = at::zeros_like(mine);
  for (const at::Tensor& one : all) sum.add_(one);
  bucket.group().broadcast({sum})->wait();  // a second stage
  return sum;
}

}  // namespace

const std::vector<ExactHook>& exact_hooks() {
  using Made = std::shared_ptr<CommHook>;
  static const std::vector<ExactHook> hooks{
      {"none", true, []() -> Made { return nullptr; }},
      {"allreduce", true, []() -> Made { return make_allreduce_hook(); }},
      {"all_gather_and_sum", true, []() -> Made { return make_comm_hook(&all_gather_and_sum); }},
      {"all_gather_and_sum, two at once", true,
       []() -> Made { return make_comm_hook(&all_gather_and_sum, {.parallel_safe = true}); }},
      {"checking", true, []() -> Made { return make_checking_hook(make_allreduce_hook()); }},
      {"hook_then_step", true,
       []() -> Made {
         return make_hook_then_step(make_allreduce_hook(), [](const std::string&, at::Tensor, at::Tensor) {});
       }},
      {"post_local_sgd before its start", true,
       []() -> Made {
         return make_post_local_sgd_hook({.start_iteration = 1000, .post_local_gradient_allreduce = false});
       }},
      {"power_sgd before its start", false, []() -> Made { return make_hook("power_sgd:start=1000"); }},
      {"int8 in its warm-up", false, []() -> Made { return make_hook("int8:warm_up=1000"); }},
  };
  return hooks;
}

TrainingPlan::TrainingPlan(std::uint64_t chosen) : seed(chosen) {
  Draw draw(seed);
  world = 1 + draw.below(4);
  setup = draw.one_in(4) ? Setup{"local", -1, draw.one_in(2)} : Setup{"threads", draw.below(4), draw.one_in(2)};
  bucket_cap_mb = std::pow(10.0, -draw.below(6));
  graphs = static_cast<Graphs>(draw.below(3));
  const bool single_precision = draw.one_in(2);
  if (single_precision) tolerance = 1e-4;
  std::int64_t width = 1 + draw.below(8);
  const int count = 1 + draw.below(8);
  for (int i = 0; i < count; ++i) {
    LayerPlan layer = draw_layer(draw, width, single_precision);
    if (i == 0) layer.branch = false;  // something always needs a gradient
    layer.shares = draw_shared(draw, layers, layer);
    if (!layer.branch) width = layer.out;
    layers.push_back(layer);
  }
  const int step_count = 2 + draw.below(4);
  for (int i = 0; i < step_count; ++i)
    steps.push_back({draw.below(3), graphs != Graphs::fixed && draw.one_in(3) ? 1 + draw.below(2) : 0});
  const bool is_complex =
      std::any_of(layers.begin(), layers.end(), [](const LayerPlan& layer) { return at::isComplexType(layer.dtype); });
  const auto draw_hook = [&] {
    const auto drawn = static_cast<std::size_t>(draw.below(static_cast<int>(exact_hooks().size())));
    return is_complex && !exact_hooks()[drawn].takes_complex ? std::size_t{1} : drawn;
  };
  hook = draw_hook();
  if (draw.one_in(3)) {
    later_hook = draw_hook();
    replaced_at = static_cast<std::size_t>(draw.below(step_count));
  }
}

bool TrainingPlan::uses(int rank, std::size_t step, int pass, std::size_t layer) const {
  if (graphs == Graphs::every_parameter || !layers[layer].branch) return true;
  // With a fixed graph always the same; a layer in four is used by nobody.
  Draw draw(seed * 1000003 + layer);
  if (draw.one_in(4)) return false;
  const auto when = graphs == Graphs::fixed ? 0 : step * 10 + static_cast<std::size_t>(pass);
  return Draw(seed * 7919 + layer * 1009 + when * 101 + static_cast<std::size_t>(rank)).one_in(2);
}

at::Tensor TrainingPlan::input(int rank, std::size_t step, int pass) const {
  const auto number = static_cast<int>(seed % 100000) * 1000 + rank * 100 + static_cast<int>(step) * 10 + pass;
  return random_tensor({kBatch, layers.front().in}, number).to(at::kDouble);
}

std::string TrainingPlan::describe() const {
  std::ostringstream out;
  out << "seed " << seed << ": " << world << " ranks, " << setup.group << ", lanes " << setup.lanes
      << (setup.view ? ", views" : ", copies") << ", buckets of " << bucket_cap_mb << " MiB, graphs "
      << kGraphNames[static_cast<std::size_t>(graphs)] << ", hook '" << exact_hooks()[hook].name << "'";
  if (replaced_at < steps.size()) out << ", '" << exact_hooks()[later_hook].name << "' from step " << replaced_at;
  out << "\n  layers:";
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const LayerPlan& layer = layers[i];
    out << ' ' << i << "=" << kKindNames[static_cast<std::size_t>(layer.kind)] << '(' << layer.in << "->" << layer.out
        << ", " << layer.dtype << (layer.branch ? ", branch" : "");
    if (layer.shares >= 0) out << ", shares " << layer.shares;
    out << ')';
  }
  out << "\n  steps:";
  for (const StepPlan& step : steps)
    out << ' ' << (step.zero == 0 ? "none" : step.zero == 1 ? "zeros" : "kept") << '+' << step.local;
  return out.str();
}

RandomNetImpl::RandomNetImpl(const TrainingPlan& plan) : layers_(plan.layers) {
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    const LayerPlan& layer = layers_[i];
    if (layer.shares >= 0) {
      weights_.push_back(weights_[static_cast<std::size_t>(layer.shares)]);
      continue;
    }
    std::vector<at::Tensor> made;
    const auto add = [&](at::IntArrayRef sizes) {
      const auto number = static_cast<int>(plan.seed % 100000) * 100 + static_cast<int>(10 * i + made.size());
      at::Tensor values = random_tensor(sizes, number).to(at::kDouble);
      if (layer.dtype == at::kComplexDouble)
        values = at::complex(values, random_tensor(sizes, number + 5).to(at::kDouble));
      made.push_back(register_parameter(concat("layer", i, "_", made.size()), values.to(layer.dtype)));
    };
    switch (layer.kind) {
      case LayerKind::linear:
        add({layer.out, layer.in});
        add({layer.out});
        break;
      case LayerKind::scale:
        add({layer.in});
        break;
      case LayerKind::low_rank:
        add({layer.out, 2});
        add({2, layer.in});
        break;
      case LayerKind::complex_product:
        add({layer.in});
        add({});
        break;
      case LayerKind::convolution:
        add({2, 1, 3});
        add({2});
        break;
    }
    weights_.push_back(std::move(made));
  }
}

at::Tensor RandomNetImpl::apply(std::size_t layer, const at::Tensor& x) const {
  const std::vector<at::Tensor>& w = weights_[layer];
  const at::Tensor in = x.to(layers_[layer].dtype);
  switch (layers_[layer].kind) {
    case LayerKind::linear:
      return at::linear(in, w[0], w[1]).to(at::kDouble);
    case LayerKind::scale:
      return (in * w[0]).to(at::kDouble);
    case LayerKind::low_rank:
      return in.matmul((w[0].matmul(w[1])).t()).to(at::kDouble);
    case LayerKind::complex_product: {
      const at::Tensor product = in * w[0] + w[1];
      return at::real(product * product.conj());
    }
    case LayerKind::convolution:
      return at::conv1d(in.unsqueeze(1), w[0], w[1], /*stride=*/1, /*padding=*/1).mean(1).to(at::kDouble);
  }
  return {};
}

at::Tensor RandomNetImpl::forward(const at::Tensor& x, const std::vector<bool>& used) {
  at::Tensor chain = x;
  at::Tensor loss = at::zeros({}, at::kDouble);
  for (std::size_t layer = 0; layer < layers_.size(); ++layer) {
    if (!used[layer]) continue;
    const at::Tensor out = at::tanh(apply(layer, chain));
    if (layers_[layer].branch) {
      loss = loss + out.square().mean();
    } else {
      chain = out;
    }
  }
  return loss + chain.square().mean();
}

std::vector<bool> used_layers(const TrainingPlan& plan, int rank, std::size_t step, int pass) {
  std::vector<bool> used;
  for (std::size_t layer = 0; layer < plan.layers.size(); ++layer) used.push_back(plan.uses(rank, step, pass, layer));
  return used;
}

void descend(torch::nn::Module& module) {
  const torch::NoGradGuard no_grad;
  for (at::Tensor& parameter : module.parameters()) {
    if (parameter.grad().defined()) parameter.sub_(parameter.grad(), 0.05);
  }
}

std::vector<std::vector<at::Tensor>> oracle_gradients(const TrainingPlan& plan) {
  RandomNet net(plan);
  std::vector<std::vector<at::Tensor>> gradients;
  for (std::size_t step = 0; step < plan.steps.size(); ++step) {
    if (plan.steps[step].zero < 2) net->zero_grad(/*set_to_none=*/plan.steps[step].zero == 0);
    for (int pass = 0; pass <= plan.steps[step].local; ++pass) {
      for (int rank = 0; rank < plan.world; ++rank)
        (net->forward(plan.input(rank, step, pass), used_layers(plan, rank, step, pass)) / plan.world).backward();
    }
    gradients.push_back(gradients_of(*net));
    descend(*net);
  }
  return gradients;
}

std::string training_error(const TrainingPlan& plan, int rank, const std::shared_ptr<ProcessGroup>& group,
                           const std::vector<std::vector<at::Tensor>>& expected) {
  RandomNet net(plan);
  DdpOptions options = options_for(plan.setup, group);
  options.bucket_cap_mb = plan.bucket_cap_mb;
  options.find_unused_parameters = plan.graphs == Graphs::searched;
  options.static_graph = plan.graphs == Graphs::fixed;
  DistributedDataParallel ddp(net, options);
  if (auto hook = exact_hooks()[plan.hook].make(); hook != nullptr) ddp.register_comm_hook(hook);
  const auto backward = [&](std::size_t step, int pass) {
    ddp(plan.input(rank, step, pass), used_layers(plan, rank, step, pass)).backward();
  };
  for (std::size_t step = 0; step < plan.steps.size(); ++step) {
    if (step == plan.replaced_at) ddp.replace_comm_hook(exact_hooks()[plan.later_hook].make());
    if (plan.steps[step].zero < 2) ddp.zero_grad(/*set_to_none=*/plan.steps[step].zero == 0);
    for (int pass = 0; pass < plan.steps[step].local; ++pass) {
      const auto guard = ddp.no_sync();
      backward(step, pass);
    }
    backward(step, plan.steps[step].local);
    const auto named = net->named_parameters();
    for (std::size_t i = 0; i < named.size(); ++i) {
      const at::Tensor& wanted = expected[step][i];
      const at::Tensor& got = named[i].value().grad();
      const std::string where = concat("step ", step, ", rank ", rank, ", '", named[i].key(), "': ");
      if (got.defined() != wanted.defined()) return concat(where, got.defined() ? "a gradient" : "no gradient");
      if (!got.defined()) continue;
      const double off = got.numel() == 0 ? 0 : (got - wanted).abs().max().item<double>();
      if (!(off <= plan.tolerance)) return concat(where, "off by ", off);
    }
    descend(*net);
  }
  return "";
}

}  // namespace gradwire::testing
