// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "tests/properties/random_model.h"

#include "gradwire/base/strings.h"

namespace gradwire::testing {
namespace {

// Numbers that are the same on every machine.
class Random {
 public:
  explicit Random(std::uint64_t seed) : engine_(seed) {}
  std::size_t below(std::size_t end) { return static_cast<std::size_t>(engine_() % end); }
  bool one_in(std::size_t n) { return below(n) == 0; }

 private:
  std::mt19937_64 engine_;
};

at::Tensor uniform(at::IntArrayRef sizes, std::uint64_t seed) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  return at::rand(sizes, generator, at::TensorOptions(at::kDouble)).sub_(0.5);
}

}  // namespace

bool Run::uses(int rank, int iteration, std::size_t step, int branch) const {
  if (graph == Graph::whole) return true;
  // With a fixed graph every iteration is the first; ranks may differ all the same.
  const int when = graph == Graph::fixed ? 0 : iteration;
  Random random(((number * 64 + static_cast<std::uint64_t>(rank)) * 64 + static_cast<std::uint64_t>(when)) * 64 +
                step * 8 + static_cast<std::uint64_t>(branch));
  if (branch == 0) return true;
  return branch != 3 && random.one_in(2);  // the fourth is never used
}

at::Tensor Run::input(int rank, int iteration) const {
  return uniform({rows, steps.front().in}, number * 1000 + static_cast<std::uint64_t>(rank * 50 + iteration));
}

Run random_run(std::uint64_t number, int world) {
  Random random(number);
  Run run;
  run.number = number;
  run.world = world;
  run.rows = 1 + static_cast<std::int64_t>(random.below(4));
  run.graph = static_cast<Graph>(random.below(3));
  std::int64_t width = 1 + static_cast<std::int64_t>(random.below(12));
  const std::size_t depth = 1 + random.below(6);
  for (std::size_t i = 0; i < depth; ++i) {
    Step step;
    step.in = width;
    step.out = random.one_in(3) ? width : 1 + static_cast<std::int64_t>(random.below(12));
    step.branches = random.one_in(2) ? 1 : 2 + static_cast<int>(random.below(3));
    step.norm = random.one_in(4);
    step.frozen = i > 0 && random.one_in(8);
    step.dtype = random.one_in(5) ? at::kFloat : at::kDouble;
    for (std::size_t before = 0; before < i && random.one_in(2); ++before) {
      const Step& other = run.steps[before];
      if (other.in == step.in && other.out == step.out && other.shared_with < 0) {
        step = other;
        step.shared_with = static_cast<int>(before);
        break;
      }
    }
    run.steps.push_back(step);
    width = step.out;
  }
  run.iterations = 2 + static_cast<int>(random.below(4));
  for (int i = 0; i < run.iterations; ++i) {
    // A fixed graph counts the gradients of synchronized iterations alone, so it keeps to those here.
    run.synchronized.push_back(run.graph == Graph::fixed || i + 1 == run.iterations || !random.one_in(4));
    // What an iteration without synchronization left is part of the next average.
    const bool left = i > 0 && !run.synchronized[static_cast<std::size_t>(i) - 1];
    const auto zero = static_cast<Zero>(random.below(3));
    run.zero.push_back(left ? Zero::never : zero);
  }
  run.hook = static_cast<int>(random.below(3));
  if (!random.one_in(4)) run.bucket_cap_mb = static_cast<double>(1 + random.below(2000)) / (1 << 20);
  run.local_group = random.one_in(4);
  run.lanes = static_cast<int>(random.below(4));
  run.view = random.one_in(2);
  return run;
}

std::ostream& operator<<(std::ostream& out, const Run& run) {
  const char* const graphs[] = {"everything used", "find_unused_parameters", "static_graph"};
  const char* const hooks[] = {"no hook", "all-reduce hook", "hook of two stages"};
  out << "random model " << run.number << " on " << run.world << " ranks of " << run.rows << " rows, " << run.iterations
      << " iterations, " << graphs[static_cast<int>(run.graph)] << ", " << hooks[run.hook] << ", cap "
      << (run.bucket_cap_mb ? concat(*run.bucket_cap_mb, " MiB") : std::string("not given")) << ", "
      << (run.local_group ? std::string("a user's group") : concat(run.lanes, " lanes")) << (run.view ? ", views" : "");
  for (const Step& step : run.steps) {
    out << "; " << step.in << "->" << step.out << " x" << step.branches << ' ' << step.dtype
        << (step.shared_with >= 0 ? concat(" of step ", step.shared_with) : std::string()) << (step.norm ? " norm" : "")
        << (step.frozen ? " frozen" : "");
  }
  return out;
}

RandomModelImpl::RandomModelImpl(const Run& run) : run_(run) {
  std::uint64_t seed = run.number * 100;
  for (std::size_t i = 0; i < run.steps.size(); ++i) {
    const Step& step = run.steps[i];
    if (step.shared_with >= 0) {
      const auto other = static_cast<std::size_t>(step.shared_with);
      layers_.push_back(layers_[other]);
      norms_.push_back(norms_[other]);
      continue;
    }
    layers_.emplace_back();
    for (int branch = 0; branch < step.branches; ++branch) {
      layers_.back().push_back(register_module(concat("step", i, "_", branch), torch::nn::Linear(step.in, step.out)));
      layers_.back().back()->to(step.dtype);
    }
    norms_.emplace_back(nullptr);
    if (step.norm) {
      norms_.back() = register_module(concat("norm", i), torch::nn::LayerNorm(torch::nn::LayerNormOptions({step.out})));
      norms_.back()->to(at::kDouble);
    }
    if (!step.frozen) continue;
    for (auto& layer : layers_.back()) {
      for (auto& parameter : layer->parameters()) parameter.requires_grad_(false);
    }
  }
  const torch::NoGradGuard no_grad;
  for (auto& parameter : parameters()) parameter.copy_(uniform(parameter.sizes(), ++seed));
}

at::Tensor RandomModelImpl::forward(at::Tensor x, int rank, int iteration) {
  for (std::size_t i = 0; i < run_.steps.size(); ++i) {
    at::Tensor sum = at::zeros({x.size(0), run_.steps[i].out}, at::kDouble);
    for (std::size_t branch = 0; branch < layers_[i].size(); ++branch) {
      if (!run_.uses(rank, iteration, i, static_cast<int>(branch))) continue;
      sum = sum + layers_[i][branch](x.to(run_.steps[i].dtype)).to(at::kDouble);
    }
    if (norms_[i]) sum = norms_[i](sum);
    x = torch::tanh(sum);
  }
  return x;
}

}  // namespace gradwire::testing
