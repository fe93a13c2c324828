// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "examples/char_lm/ranks.h"

#include <torch/types.h>

#include <algorithm>
#include <stdexcept>

#include "gradwire/base/environment.h"
#include "gradwire/base/strings.h"
#include "gradwire/process_group/init.h"
#include "gradwire/store/hash_store.h"

namespace char_lm {
namespace {

bool started_by_a_launcher() {
  for (const char* name : {"RANK", "WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"}) {
    if (gradwire::environment(name)) {
      return true;
    }
  }
  return false;
}

}  // namespace

std::shared_ptr<gradwire::ProcessGroup> join_ranks(const std::string& backend) {
  gradwire::InitOptions options;
  options.backend = backend;
  if (!started_by_a_launcher()) {
    options.store = std::make_shared<gradwire::HashStore>();
    options.rank = 0;
    options.world_size = 1;
  }
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

std::vector<std::string> gather_bytes(gradwire::ProcessGroup& group, const std::string& bytes) {
  const std::vector<std::int64_t> sizes = gather_over_ranks(group, static_cast<std::int64_t>(bytes.size()));
  const auto longest = *std::max_element(sizes.begin(), sizes.end());
  const torch::Tensor mine = torch::zeros({longest}, torch::kByte);
  std::copy(bytes.begin(), bytes.end(), reinterpret_cast<char*>(mine.data_ptr<std::uint8_t>()));
  std::vector<std::vector<torch::Tensor>> all;
  if (group.rank() == 0) {
    all.emplace_back();
    for (int rank = 0; rank < group.size(); ++rank) all[0].push_back(torch::empty_like(mine));
  }
  group.gather(all, {mine})->wait();
  std::vector<std::string> result;
  for (std::size_t rank = 0; group.rank() == 0 && rank < sizes.size(); ++rank) {
    const auto* begin = reinterpret_cast<const char*>(all[0][rank].const_data_ptr<std::uint8_t>());
    result.emplace_back(begin, begin + sizes[rank]);
  }
  return result;
}

void on_rank_zero(gradwire::ProcessGroup& group, const std::string& what, const std::function<void()>& action) {
  std::exception_ptr error;
  if (group.rank() == 0) {
    try {
      action();
    } catch (...) {
      error = std::current_exception();
    }
  }
  const std::vector<std::int64_t> failed = gather_over_ranks(group, error == nullptr ? 0 : 1);
  if (error != nullptr) {
    std::rethrow_exception(error);
  }
  if (failed[0] != 0) {
    throw std::runtime_error(gradwire::concat("rank 0 failed to ", what, "; its own message says why"));
  }
}

}  // namespace char_lm
