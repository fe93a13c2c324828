// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// One rank that trains, with and without DDP.
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bench/ddp_command.h"
#include "bench/group_ranks.h"
#include "gradwire/base/error.h"
#include "gradwire/ddp/distributed_data_parallel.h"
#include "gradwire/observe/step_recorder.h"
#include "gradwire/optim/fused_zero_hook.h"

namespace gradwire::bench {
namespace {

constexpr int kWidth = 1024;
constexpr int kLayers = 6;
constexpr int kClasses = 10;
constexpr std::string_view kRecorded = "/recorded";

// Six layers of 1024 x 1024 with ReLU and one of 1024 x 10: 6,307,850 parameters.
torch::nn::Sequential make_model() {
  torch::manual_seed(1);
  torch::nn::Sequential model;
  for (int i = 0; i < kLayers; ++i) {
    model->push_back(torch::nn::Linear(kWidth, kWidth));
    model->push_back(torch::nn::ReLU());
  }
  model->push_back(torch::nn::Linear(kWidth, kClasses));
  return model;
}

OptimizerFactory factory_of(const std::string& optimizer) {
  using namespace torch::optim;
  if (optimizer == "sgd") return optimizer_factory<SGD>(SGDOptions(0.01));
  if (optimizer == "momentum") return optimizer_factory<SGD>(SGDOptions(0.01).momentum(0.9));
  if (optimizer == "adam") return optimizer_factory<Adam>(AdamOptions(1e-3));
  if (optimizer == "adamw") return optimizer_factory<AdamW>(AdamWOptions(1e-3));
  throw InvalidArgument("training-worker: no optimizer '" + optimizer + "'.");
}

// One way to train: a model of its own, with or without DDP around it.
class Trainer {
 public:
  Trainer(const TrainingWorkerOptions& options, std::string_view variant, const std::shared_ptr<ProcessGroup>& group)
      : set_to_none_(variant.ends_with("/none")),
        meeting_(variant.starts_with("meet") ? group : nullptr),
        model_(make_model()) {
    const OptimizerFactory factory = factory_of(options.optimizer);
    const bool fused = variant.starts_with("fused");
    if (!fused) {
      std::vector<torch::optim::OptimizerParamGroup> groups;
      groups.emplace_back(model_->parameters());
      optimizer_ = factory(std::move(groups));
    }
    if (variant.starts_with("alone") || meeting_ != nullptr) return;
    DdpOptions ddp;
    ddp.gradient_as_bucket_view = fused || variant.starts_with("view");
    ddp.lanes = options.lanes;
    if (options.bucket_cap_mb > 0) ddp.bucket_cap_mb = options.bucket_cap_mb;
    ddp_ = std::make_unique<DistributedDataParallel<torch::nn::Sequential>>(model_, ddp);
    if (!fused) return;
    const auto zero =
        std::make_shared<ZeroRedundancyOptimizer>(model_->parameters(), factory, ZeroOptions{.overlap_with_ddp = true});
    ddp_->register_comm_hook(make_fused_zero_hook(zero, ddp_->core()));
    optimizer_ = zero;
  }

  void step(const at::Tensor& input, const at::Tensor& target) {
    optimizer_->zero_grad(set_to_none_);
    const at::Tensor output = ddp_ ? ddp_->forward(input) : model_->forward(input);
    torch::nn::functional::cross_entropy(output, target).backward();
    if (meeting_ != nullptr) meeting_->barrier()->wait();
    optimizer_->step();
  }

 private:
  const bool set_to_none_;
  const std::shared_ptr<ProcessGroup> meeting_;  // null: the ranks do not wait for each other
  torch::nn::Sequential model_;
  std::shared_ptr<torch::optim::Optimizer> optimizer_;
  std::unique_ptr<DistributedDataParallel<torch::nn::Sequential>> ddp_;
};

}  // namespace

void run_training_worker(const TrainingWorkerOptions& options) {
  serve_group_ranks(options, [&](const std::shared_ptr<ProcessGroup>& group) {
    std::map<std::string, std::unique_ptr<Trainer>> trainers;
    const at::Tensor input = torch::randn({options.batch, kWidth});
    const at::Tensor target = torch::randint(0, kClasses, {options.batch});
    Trainer* trainer = nullptr;
    Subject subject;
    subject.prepare = [&](const Measurement& what) {
      std::string variant = what.variant;
      const bool recorded = variant.ends_with(kRecorded);
      if (recorded) variant.resize(variant.size() - kRecorded.size());
      observe::set_recording(recorded);
      std::unique_ptr<Trainer>& known = trainers[variant];
      if (known == nullptr) known = std::make_unique<Trainer>(options, variant, group);
      trainer = known.get();
      group->barrier()->wait();
    };
    subject.refill = [] {};
    subject.barrier = [] {};  // steps follow each other as they do in training
    subject.run = [&] { trainer->step(input, target); };
    serve(options.socket, options.contestant, group->rank(), subject);
  });
}

}  // namespace gradwire::bench
