// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// far_apart_worker NAME=VALUE ...   one member of the jobs of far_apart_bench: trains char_lm's transformer with
// DiLoCo, or in DistributedDataParallel. Writes to its folder how far it is, and the loss at the end.
#include <ATen/Parallel.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <numbers>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "examples/char_lm/evaluate.h"
#include "examples/char_lm/model.h"
#include "examples/char_lm/sampler.h"
#include "examples/char_lm/text.h"
#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "gradwire/elastic/elastic.h"
#include "gradwire/optim/diloco.h"
#include "gradwire/optim/post_local_sgd_optimizer.h"

namespace gradwire::bench {
namespace {

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

// NAME=VALUE words. All names must be there.
class Settings {
 public:
  Settings(int argc, char** argv) {
    for (int i = 1; i < argc; ++i) {
      const std::string word = argv[i];
      const std::size_t middle = word.find('=');
      if (middle == std::string::npos) throw InvalidArgument(concat("'", word, "' must read NAME=VALUE"));
      values_[word.substr(0, middle)] = word.substr(middle + 1);
    }
  }
  const std::string& text(const std::string& name) const {
    const auto found = values_.find(name);
    if (found == values_.end()) throw InvalidArgument(concat("there is no ", name, "=VALUE"));
    return found->second;
  }
  std::int64_t integer(const std::string& name) const { return std::stoll(text(name)); }
  double real(const std::string& name) const { return std::stod(text(name)); }

 private:
  std::map<std::string, std::string> values_;
};

// AdamW that says how long its steps took.
class TimedAdamW final : public torch::optim::AdamW {
 public:
  TimedAdamW(std::vector<at::Tensor> parameters, double lr)
      : AdamW(std::move(parameters), torch::optim::AdamWOptions(lr).betas({0.9, 0.99})) {}
  at::Tensor step(LossClosure closure = nullptr) override {
    const auto begin = Clock::now();
    at::Tensor loss = AdamW::step(std::move(closure));
    taken_ += Clock::now() - begin;
    return loss;
  }
  Seconds taken() const { return taken_; }

 private:
  Seconds taken_{0};
};

// The times of this process since its first step, in a file that is always whole.
class Report {
 public:
  explicit Report(const std::string& folder) : file_(concat(folder, "/worker-", ::getpid())) {}
  void begin_step() {
    if (!first_) first_ = Clock::now();
  }
  void write(std::int64_t step, Seconds computing, double loss = 0) const {
    // A worker that comes when all steps have counted does none.
    const Seconds since_first = first_ ? Seconds(Clock::now() - *first_) : Seconds(0);
    std::ofstream(file_ + ".new") << step << " " << computing.count() << " " << since_first.count() << " " << loss
                                  << "\n";
    std::filesystem::rename(file_ + ".new", file_);
  }

 private:
  const std::string file_;
  std::optional<Clock::time_point> first_;
};

// A run over `settings`. The members of the first epoch come one by one.
class Run {
 public:
  explicit Run(const Settings& settings)
      : settings_(settings),
        context_(static_cast<int>(settings.integer("context"))),
        corpus_(char_lm::load_file(settings.text("text")), context_),
        report_(settings.text("folder")) {
    torch::manual_seed(static_cast<std::uint64_t>(settings.integer("seed")));
    model_ = char_lm::CharTransformer(char_lm::ModelSize{.vocabulary = corpus_.vocabulary().size(),
                                                         .layers = settings.integer("layers"),
                                                         .width = settings.integer("width"),
                                                         .heads = 4,
                                                         .context = context_});
  }

  void train_together() {
    DdpOptions options;
    options.process_group = elastic_.group();
    DistributedDataParallel<char_lm::CharTransformer> ddp(model_, options);
    TimedAdamW optimizer(ddp.parameters(), settings_.real("lr"));
    elastic_.add(ddp).add(optimizer);
    const ElasticEnd end = train(optimizer, optimizer, [&](const at::Tensor& x) { return ddp(x); });
    if (end == ElasticEnd::finished) finish(optimizer);
  }

  void train_apart() {
    DilocoOptions options{.process_group = elastic_.group(),
                          .inner_steps = settings_.integer("inner_steps"),
                          .fragments = settings_.integer("fragments"),
                          .overlap = settings_.integer("overlap"),
                          .mixing = settings_.real("mixing"),
                          .hook = settings_.text("hook")};
    const double momentum = settings_.real("outer_momentum");
    options.outer = optimizer_factory<torch::optim::SGD>(
        torch::optim::SGDOptions(settings_.real("outer_lr")).momentum(momentum).nesterov(momentum > 0));
    const auto diloco = std::make_shared<DilocoAverager>(model_->parameters(), options);
    auto inner = std::make_unique<TimedAdamW>(model_->parameters(), settings_.real("lr"));
    const TimedAdamW& timed = *inner;
    PostLocalSGDOptimizer optimizer(std::move(inner), diloco);
    elastic_.add(optimizer);
    const ElasticEnd end = train(optimizer, timed, [&](const at::Tensor& x) { return model_->forward(x); });
    if (end != ElasticEnd::finished) return;
    diloco->finish_exchanges();
    const torch::NoGradGuard no_grad;
    const std::vector<at::Tensor> outer = diloco->outer_parameters();
    const std::vector<at::Tensor> own = model_->parameters();
    for (std::size_t i = 0; i < own.size(); ++i) own[i].detach().copy_(outer[i]);
    finish(timed);
  }

 private:
  template <class Forward>
  ElasticEnd train(torch::optim::Optimizer& optimizer, const TimedAdamW& timed, const Forward& forward) {
    const std::int64_t steps = settings_.integer("steps");
    const int workers = static_cast<int>(settings_.integer("workers"));
    return elastic_.run(steps, [&](const ElasticStep& at) {
      if (at.step == 0 && at.size < workers) await_the_others();
      report_.begin_step();
      const auto begin = Clock::now();
      const char_lm::Samples samples = samples_of(at, workers);
      set_lr(optimizer, at.step, steps);
      optimizer.zero_grad();
      const at::Tensor loss = char_lm::cross_entropy(forward(samples.inputs), samples.targets);
      loss.backward();
      passes_ += Clock::now() - begin;
      optimizer.step();
      if (at.step % 10 == 0) report_.write(at.step, passes_ + timed.taken());
    });
  }

  // The step does not take place, and the next epoch has those that have come meanwhile.
  [[noreturn]] static void await_the_others() {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    throw PeerError("not all workers have come yet", {});
  }

  // The same samples whoever takes them: rank r of all workers takes its share of the step's batch.
  char_lm::Samples samples_of(const ElasticStep& at, int workers) const {
    const char_lm::Sampler sampler(static_cast<std::uint64_t>(settings_.integer("seed")), corpus_.train().size(),
                                   context_, static_cast<int>(settings_.integer("batch")) * workers, at.rank, workers);
    return char_lm::cut(corpus_.train(), sampler.train(at.step), context_);
  }

  // Rises over the first 100 steps of this worker, whose AdamW remembers nothing when it comes, and falls along a
  // cosine to a tenth.
  void set_lr(torch::optim::Optimizer& optimizer, std::int64_t step, std::int64_t steps) {
    const double part = static_cast<double>(step) / static_cast<double>(steps);
    const double share = std::min(1.0, static_cast<double>(++own_steps_) / 100) *
                         (0.1 + 0.9 * (1 + std::cos(std::numbers::pi * part)) / 2);
    optimizer.param_groups()[0].options().set_lr(settings_.real("lr") * share);
  }

  void finish(const TimedAdamW& timed) {
    constexpr int kBatches = 32;
    const torch::NoGradGuard no_grad;
    const char_lm::Sampler sampler(1, corpus_.held_out().size(), context_, 64, 0, 1);
    double sum = 0;
    for (int batch = 0; batch < kBatches; ++batch) {
      const auto samples =
          char_lm::cut(corpus_.held_out(), sampler.held_out(batch, kBatches, corpus_.held_out().size()), context_);
      sum += char_lm::cross_entropy(model_->forward(samples.inputs), samples.targets).item<double>();
    }
    report_.write(settings_.integer("steps"), passes_ + timed.taken(), sum / kBatches);
  }

  const Settings& settings_;
  const int context_;
  const char_lm::Corpus corpus_;
  Report report_;
  Elastic elastic_;
  char_lm::CharTransformer model_{nullptr};
  Seconds passes_{0};
  std::int64_t own_steps_ = 0;
};

}  // namespace
}  // namespace gradwire::bench

int main(int argc, char** argv) {
  try {
    at::set_num_threads(1);
    const gradwire::bench::Settings settings(argc, argv);
    gradwire::bench::Run run(settings);
    settings.text("method") == "ddp" ? run.train_together() : run.train_apart();
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "far_apart_worker: %s\n", error.what());
    return 1;
  }
}
