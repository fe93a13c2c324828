// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Reinforcement learning with ranks that act apart: each rank plays episodes of its own, with a budget of moves.
// Episodes differ in length, so ranks play different numbers of them. Join (gradwire/ddp/join.h) lets a rank that is
// done take part in the averages of the others. The method is REINFORCE with a running baseline.
//
// The game: a cart on a line of 11 fields starts in the middle and wants to be at the right end. Each move costs 1; the
// left end is a cliff, which costs 20 and ends the episode.
//
//   gradwire-run -n 2 reinforcement_learning
#include <torch/torch.h>

#include <cstdio>
#include <vector>

#include "gradwire/gradwire.h"

namespace {

constexpr std::int64_t kFields = 11;
constexpr int kLongest = 60;  // moves of an episode

struct Policy : torch::nn::Module {
  Policy() { register_module("net", net); }
  // The log-probabilities of left and right, [fields, 2].
  torch::Tensor forward(const torch::Tensor& fields) {
    return torch::log_softmax(net->forward(torch::one_hot(fields, kFields).to(torch::kFloat)), 1);
  }

  torch::nn::Sequential net{torch::nn::Linear(kFields, 16), torch::nn::Tanh(), torch::nn::Linear(16, 2)};
};

struct Episode {
  std::vector<std::int64_t> fields, moves;
  double reward = 0;
};

Episode play(Policy& policy) {
  const torch::NoGradGuard no_grad;
  Episode episode;
  std::int64_t field = kFields / 2;
  while (field > 0 && field < kFields - 1 && episode.moves.size() < kLongest) {
    const auto chances = policy.forward(torch::tensor({field}))[0].exp();
    const auto move = chances.multinomial(1).item<std::int64_t>();
    episode.fields.push_back(field);
    episode.moves.push_back(move);
    field += move == 1 ? 1 : -1;
    episode.reward -= 1;
  }
  if (field == 0) episode.reward -= 20;
  return episode;
}

void train(gradwire::ProcessGroup& group) {
  const int rank = group.rank();
  torch::manual_seed(1);
  Policy policy;
  gradwire::DistributedDataParallel ddp(policy);
  torch::optim::Adam optimizer(ddp.parameters(), 5e-3);
  torch::manual_seed(100 + rank);  // the ranks act apart
  double baseline = -20;
  int episodes = 0;
  for (int round = 0; round <= 15; ++round) {
    double rewards = 0;
    int played = 0;
    {
      auto join = ddp.join();
      for (std::size_t budget = 100; budget > 0; ++played) {
        const Episode episode = play(policy);
        budget -= std::min(budget, episode.moves.size());
        const auto chosen = ddp(torch::tensor(episode.fields)).gather(1, torch::tensor(episode.moves).unsqueeze(1));
        optimizer.zero_grad();
        (-chosen.sum() * (episode.reward - baseline) / 10).backward();
        optimizer.step();
        baseline += 0.1 * (episode.reward - baseline);
        rewards += episode.reward;
      }
      join.finish();  // a rank that is done waits here, and gives zeros to the averages of the others
    }                 // afterwards all ranks have the model of the rank that played longest
    episodes += played;
    const auto sums = torch::tensor({rewards, double(played)}, torch::kDouble);
    group.all_reduce({sums})->wait();
    if (rank == 0) std::printf("round %2d  cost of an episode %.2f\n", round, -(sums[0] / sums[1]).item<double>());
  }
  const auto all = torch::nn::utils::parameters_to_vector(policy.parameters());
  std::printf("rank %d played %d episodes\n", rank, episodes);
  std::printf("rank %d ends with parameters of norm %.17g\n", rank, all.to(torch::kDouble).norm().item<double>());
}

}  // namespace

int main() {
  const auto group = gradwire::init_process_group();
  train(*group);
  gradwire::destroy_process_group();
}
