// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "examples/char_lm/ranks.h"

#include <torch/types.h>

#include "gradwire/base/environment.h"
#include "gradwire/process_group/init.h"

namespace char_lm {

std::shared_ptr<gradwire::ProcessGroup> join_ranks(const std::string& backend) {
  gradwire::InitOptions options;
  options.backend = backend;
  return gradwire::init_process_group(options);
}

int ranks_on_this_host() {
  for (const char* name : {"LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "SLURM_NTASKS_PER_NODE", "WORLD_SIZE"}) {
    if (const auto ranks = gradwire::environment_integer(name, 1, 1 << 20)) {
      return static_cast<int>(*ranks);
    }
  }
  return 1;
}

double sum_over_ranks(gradwire::ProcessGroup& group, double value) {
  const torch::Tensor number = torch::full({1}, value, torch::kDouble);
  group.all_reduce({number})->wait();
  return number.item<double>();
}

double mean_over_ranks(gradwire::ProcessGroup& group, double value) {
  return sum_over_ranks(group, value) / group.size();
}

std::vector<std::int64_t> gather_over_ranks(gradwire::ProcessGroup& group, std::int64_t value) {
  std::vector<torch::Tensor> numbers;
  for (int rank = 0; rank < group.size(); ++rank) {
    numbers.push_back(torch::zeros({1}, torch::kLong));
  }
  group.all_gather({numbers}, {torch::full({1}, value, torch::kLong)})->wait();
  std::vector<std::int64_t> result;
  for (const torch::Tensor& number : numbers) {
    result.push_back(number.item<std::int64_t>());
  }
  return result;
}

}  // namespace char_lm
