// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// A hook of one's own, with state: it sends the largest twentieth of each gradient and keeps the rest for the next
// step. The two collectives of a bucket are plain calls in a row; collectives of two buckets cannot meet.
//
//   gradwire-run -n 2 own_hook
//
// (Among the ready hooks, make_hook("top_k:ratio=0.05") does the same, faster.)
#include <torch/torch.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "gradwire/gradwire.h"

namespace {

class LargestTwentieth final : public gradwire::CommHook {
 public:
  LargestTwentieth() : CommHook({.name = "largest_twentieth"}) {}

  gradwire::Future run(gradwire::GradBucket& bucket) override {
    const torch::NoGradGuard no_grad;
    hold_rests(bucket);
    take_up_rests(bucket);
    const auto buffer = bucket.buffer();
    const auto count = std::max<std::int64_t>(1, buffer.numel() / 20);
    const auto places = std::get<1>(buffer.abs().topk(count, 0, true, /*sorted=*/false));
    const auto values = buffer.index_select(0, places);

    // All ranks gather all places and values, and add them in rank order: the same bits everywhere.
    const auto size = bucket.group().size();
    const auto all_places = torch::empty({size * count}, torch::kLong);
    const auto all_values = torch::empty({size * count}, values.options());
    bucket.group().all_gather_into_tensor(all_places, places)->wait();
    bucket.group().all_gather_into_tensor(all_values, values)->wait();
    auto sum = torch::zeros_like(buffer);
    for (int rank = 0; rank < size; ++rank) {
      const auto part = [&](const torch::Tensor& all) { return all.narrow(0, rank * count, count); };
      sum.index_add_(0, part(all_places), part(all_values));
    }
    // The same on all ranks. An Inf or NaN would stay in the rests for good; the step with it is not made (GradScaler).
    if (sum.isfinite().all().item<bool>()) keep_rests(bucket, places);
    return gradwire::completed_future(sum.div_(bucket.divisor()));
  }

  // No rank used these parameters, so what was sent of them is not applied: this rank still owes it.
  void revert_unused(const std::vector<std::string>& names) override {
    for (const auto& name : names) rests_[name] = held_.at(name);
  }
  void end_iteration() override { held_.clear(); }

  // For checkpoints (gradwire/optim/checkpoint.h): what this rank has not sent yet.
  gradwire::HookState state_dict() const override {
    gradwire::HookState state;
    for (const auto& [name, rest] : rests_) state.emplace("local/" + name, rest.clone());
    return state;
  }
  void load_state_dict(const gradwire::HookState& state) override {
    rests_.clear();
    for (const auto& [name, rest] : state) rests_.emplace(name.substr(sizeof("local/") - 1), rest.toTensor().clone());
  }

 private:
  // Of the parameters without a gradient here: maybe no rank has one.
  void hold_rests(const gradwire::GradBucket& bucket) {
    for (const std::size_t place : bucket.absent()) {
      const auto& name = bucket.parameter_names()[place];
      const auto rest = rests_.find(name);
      held_[name] = rest != rests_.end() ? rest->second : torch::zeros_like(bucket.gradients()[place]);
    }
  }
  // By the parameter's name, which outlives a change of the buckets.
  void take_up_rests(gradwire::GradBucket& bucket) {
    auto gradients = bucket.gradients();
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      const auto rest = rests_.find(bucket.parameter_names()[i]);
      if (rest != rests_.end()) gradients[i].add_(rest->second);
    }
  }
  void keep_rests(gradwire::GradBucket& bucket, const torch::Tensor& sent) {
    bucket.buffer().index_fill_(0, sent, 0);
    const auto gradients = bucket.gradients();
    for (std::size_t i = 0; i < gradients.size(); ++i) rests_[bucket.parameter_names()[i]] = gradients[i].clone();
  }

  std::map<std::string, torch::Tensor> rests_;
  std::map<std::string, torch::Tensor> held_;  // as they were before this iteration
};

void train(gradwire::ProcessGroup& group) {
  torch::manual_seed(1);
  torch::nn::Sequential net(torch::nn::Linear(16, 64), torch::nn::Tanh(), torch::nn::Linear(64, 1));
  gradwire::DdpOptions options;
  options.bucket_cap_mb = 0.002;  // several buckets, though the network is small
  gradwire::DistributedDataParallel ddp(net, options);
  ddp.register_comm_hook(std::make_shared<LargestTwentieth>());
  torch::optim::SGD optimizer(ddp.parameters(), torch::optim::SGDOptions(0.01));
  torch::manual_seed(100 + group.rank());
  for (int step = 0; step <= 300; ++step) {
    const auto x = torch::randn({32, 16});
    optimizer.zero_grad();
    const auto loss = torch::mse_loss(ddp(x), x.sum(1, true));
    loss.backward();
    optimizer.step();
    if (group.rank() == 0 && step % 75 == 0) std::printf("step %3d  loss %.4f\n", step, loss.item<double>());
  }
  const auto all = torch::nn::utils::parameters_to_vector(net->parameters());
  std::printf("rank %d sent %llu bytes\n", group.rank(), static_cast<unsigned long long>(ddp.core().payload_bytes()));
  std::printf("rank %d ends with parameters of norm %.17g\n", group.rank(),
              all.to(torch::kDouble).norm().item<double>());
}

}  // namespace

int main() {
  const auto group = gradwire::init_process_group();
  train(*group);
  gradwire::destroy_process_group();
}
