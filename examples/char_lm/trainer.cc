// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "examples/char_lm/trainer.h"

#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <thread>

#include "examples/char_lm/checkpoint.h"
#include "examples/char_lm/errors.h"
#include "examples/char_lm/evaluate.h"
#include "examples/char_lm/model.h"
#include "examples/char_lm/parameter_hash.h"
#include "examples/char_lm/ranks.h"
#include "examples/char_lm/replica.h"
#include "examples/char_lm/report.h"
#include "examples/char_lm/sampler.h"
#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "gradwire/observe/step_recorder.h"

namespace char_lm {
namespace {

using gradwire::concat;
using Clock = std::chrono::steady_clock;

constexpr std::int64_t kWarmUpSteps = 20;

// A launcher that set OMP_NUM_THREADS knows the machine better than this program.
int choose_threads(const Options& options) {
  if (options.threads > 0) {
    at::set_num_threads(options.threads);
  } else if (std::getenv("OMP_NUM_THREADS") == nullptr) {
    at::set_num_threads(std::max(1, static_cast<int>(std::thread::hardware_concurrency()) / ranks_on_this_host()));
  }
  return at::get_num_threads();
}

torch::ScalarType scalar_type(const std::string& dtype) {
  return dtype == "f64" ? torch::kDouble : dtype == "bf16" ? torch::kBFloat16 : torch::kFloat;
}

CharTransformer make_model(const Options& options, const Vocabulary& vocabulary) {
  torch::manual_seed(options.seed);
  CharTransformer model(ModelSize{vocabulary.size(), options.layers, options.width, options.heads, options.context});
  // Drawn in float32 whatever the dtype, so that runs of several dtypes start from the same weights.
  model->to(scalar_type(options.dtype));
  return model;
}

std::unique_ptr<torch::optim::Optimizer> make_optimizer(const Options& options, const CharTransformer& model) {
  if (options.optimizer == "sgd") {
    return std::make_unique<torch::optim::SGD>(model->parameters(), torch::optim::SGDOptions(options.lr).momentum(0.9));
  }
  return std::make_unique<torch::optim::AdamW>(model->parameters(),
                                               torch::optim::AdamWOptions(options.lr).betas({0.9, 0.99}));
}

double seconds_of(std::int64_t nanoseconds) { return static_cast<double>(nanoseconds) / 1e9; }

// Seconds and communication since the last lap.
class PaceMeter {
 public:
  PaceMeter() : start_(Clock::now()), base_(gradwire::observe::step_totals()) {}

  Pace measure(std::int64_t steps) const {
    const double seconds = elapsed();
    const gradwire::observe::StepTotals now = gradwire::observe::step_totals();
    const double count = static_cast<double>(std::max<std::int64_t>(steps, 1));
    const double in_hook = seconds_of(now.hook - base_.hook);
    return {count / seconds,
            std::min(1.0, in_hook / seconds),
            static_cast<double>(now.sent - base_.sent) / count,
            in_hook / count,
            {seconds_of(now.split.compute - base_.split.compute) / count,
             seconds_of(now.split.communication - base_.split.communication) / count,
             seconds_of(now.split.hook - base_.split.hook) / count}};
  }
  double elapsed() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }

 private:
  Clock::time_point start_;
  gradwire::observe::StepTotals base_;
};

class Run {
 public:
  Run(const Options& options, const Text& text, const std::shared_ptr<gradwire::ProcessGroup>& group)
      : options_(options),
        group_(*group),
        corpus_(text, options.context),
        sampler_(options.seed, corpus_.train().size(), options.context, options.batch, group->rank(), group->size()),
        threads_(choose_threads(options)),
        model_(make_model(options, corpus_.vocabulary())),
        optimizer_(make_optimizer(options, model_)),
        replica_(model_, options, group),
        resumed_(resume()),
        first_step_(resumed_.step),
        facts_(describe(text)),
        report_(options, facts_, group->rank() == 0) {}

  void run() {
    report_.header();
    Summary summary;
    gradwire::observe::record_steps();
    const PaceMeter whole;
    summary.train_loss = train_all_steps();
    summary.seconds = whole.elapsed();
    summary.pace = whole.measure(options_.steps - first_step_);
    summary.parameter_hash = compare_parameters();
    if (!options_.save.empty()) {
      write_checkpoint(options_.save, options_.steps);
    }
    summary.held_out_loss = held_out_loss(model_, corpus_, sampler_, options_.context, options_.eval_batches, group_);
    if (group_.rank() == 0) {
      summary.sample = generate(model_, corpus_.vocabulary(), options_.context, options_.generate, options_.seed);
    }
    report_.summary(summary);
  }

 private:
  Resumed resume() {
    const std::string file = options_.checkpoint.empty() ? options_.resume : existing_checkpoint();
    if (file.empty()) {
      return {};
    }
    return load_checkpoint(file, options_, corpus_.vocabulary(), replica_, *optimizer_, group_);
  }

  // Rank 0, which writes and reads it, says for all whether it is there.
  std::string existing_checkpoint() {
    std::error_code ignored;
    const bool found = std::filesystem::exists(options_.checkpoint, ignored);
    return gather_over_ranks(group_, found ? 1 : 0)[0] != 0 ? options_.checkpoint : "";
  }

  RunFacts describe(const Text& text) const {
    RunFacts facts;
    facts.source = text.source;
    facts.train_characters = corpus_.train().size();
    facts.held_out_characters = corpus_.held_out().size();
    facts.vocabulary = corpus_.vocabulary().size();
    for (const torch::Tensor& parameter : model_->parameters()) {
      facts.parameters += parameter.numel();
      facts.parameter_bytes += static_cast<std::int64_t>(parameter.nbytes());
    }
    facts.world = group_.size();
    facts.threads = threads_;
    facts.backend = group_.name();
    facts.first_step = first_step_;
    facts.remark = resumed_.remark;
    return facts;
  }

  // Returns the last step's loss, averaged over the ranks.
  double train_all_steps() {
    double loss = 0;
    PaceMeter lap;
    std::int64_t lap_steps = 0;
    for (std::int64_t step = first_step_; step < options_.steps; ++step) {
      const torch::Tensor local_loss = take_step(step);
      const std::int64_t done = step + 1;
      ++lap_steps;
      report_.progress(done);
      // The ranks' shares are of one size, so the mean of their means is the mean over the batch.
      if (done % options_.log_every == 0 || done == options_.steps || done == first_step_ + 1) {
        loss = mean_over_ranks(group_, local_loss.item<double>());
        gradwire::observe::tell_loss(loss);
        report_.logged_step(done, loss, lap.measure(lap_steps), gradwire::observe::last_step());
        lap = PaceMeter();
        lap_steps = 0;
      }
      if (!options_.checkpoint.empty() && done % options_.checkpoint_every == 0 && done < options_.steps) {
        write_checkpoint(options_.checkpoint, done);
      }
    }
    return loss;
  }

  torch::Tensor take_step(std::int64_t step) {
    gradwire::observe::begin_step();
    const Samples samples = cut(corpus_.train(), sampler_.train(step), options_.context);
    set_learning_rate(step);
    optimizer_->zero_grad();
    const torch::Tensor loss = cross_entropy(replica_.forward(samples.inputs), samples.targets);
    loss.backward();
    optimizer_->step();
    gradwire::observe::end_step();
    return loss.detach();
  }

  // Rises for a few steps, then stays: it depends on the step alone, so that a resumed run goes on as if nothing had
  // happened.
  void set_learning_rate(std::int64_t step) {
    const double share = std::min(1.0, static_cast<double>(step + 1) / static_cast<double>(kWarmUpSteps));
    for (auto& parameters : optimizer_->param_groups()) {
      parameters.options().set_lr(options_.lr * share);
    }
  }

  // The common hash, or nothing under a hook that lets the ranks drift apart.
  std::string compare_parameters() {
    const std::uint64_t hash = hash_parameters(*model_);
    const std::vector<std::int64_t> hashes = gather_over_ranks(group_, static_cast<std::int64_t>(hash));
    for (std::size_t rank = 1; rank < hashes.size(); ++rank) {
      if (hashes[rank] == hashes[0]) {
        continue;
      }
      if (options_.hook.starts_with("noop")) {
        report_.say("parameters differ between the ranks, as they must under the hook noop, which averages nothing");
        return {};
      }
      throw gradwire::InternalError(concat("rank ", rank, " ended with other parameters than rank 0"));
    }
    report_.say(concat("parameters agree on all ranks: ", hash_text(hash)));
    return hash_text(hash);
  }

  void write_checkpoint(const std::string& file, std::int64_t step) {
    save_checkpoint(file, options_, corpus_.vocabulary(), step, replica_, *optimizer_);
    report_.say(concat("checkpoint of step ", step, " written to ", file));
  }

  const Options& options_;
  gradwire::ProcessGroup& group_;
  const Corpus corpus_;
  const Sampler sampler_;
  const int threads_;
  CharTransformer model_;
  const std::unique_ptr<torch::optim::Optimizer> optimizer_;
  Replica replica_;
  const Resumed resumed_;
  const std::int64_t first_step_;
  RunFacts facts_;
  Report report_;
};

}  // namespace

void train(const Options& options, const Text& text, const std::shared_ptr<gradwire::ProcessGroup>& group) {
  if (options.batch % group->size() != 0) {
    throw UserError(concat("--batch ", options.batch, " cannot be shared evenly by ", group->size(), " ranks"));
  }
  Run(options, text, group).run();
}

}  // namespace char_lm
