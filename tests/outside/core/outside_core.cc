// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Raw buffers and no torch: three ranks as threads sum their numbers.
#include <cstdio>
#include <exception>
#include <memory>
#include <numeric>
#include <thread>
#include <vector>

#include "gradwire/core.h"

namespace {

constexpr int kRanks = 3;

// Whether this rank saw the right sum.
bool run_rank(const std::shared_ptr<gradwire::Store>& store, int rank) {
  const auto backend = gradwire::make_backend("threads", {.store = store, .rank = rank, .size = kRanks});
  std::vector<float> numbers(1000);
  std::iota(numbers.begin(), numbers.end(), static_cast<float>(rank));
  backend->channel().all_reduce(numbers.data(), numbers.size(), gradwire::DType::f32, gradwire::ReduceOp::sum(), {});
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    if (numbers[i] != static_cast<float>(kRanks * i + kRanks * (kRanks - 1) / 2)) return false;
  }
  return true;
}

}  // namespace

int main() {
  const auto store = std::make_shared<gradwire::HashStore>();
  std::vector<int> right(kRanks, 0);
  {
    std::vector<std::jthread> ranks;
    for (int rank = 0; rank < kRanks; ++rank) {
      ranks.emplace_back([&, rank] {
        try {
          right[rank] = run_rank(store, rank) ? 1 : 0;
        } catch (const std::exception& error) {
          std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
        }
      });
    }
  }
  const bool all = std::accumulate(right.begin(), right.end(), 0) == kRanks;
  std::printf("outside_core: %d ranks, %s\n", kRanks, all ? "right" : "WRONG");
  return all ? 0 : 1;
}
