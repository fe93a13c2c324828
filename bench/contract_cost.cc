// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "bench/contract_cost.h"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <thread>
#include <vector>

#include "bench/statistics.h"
#include "bench/worker.h"
#include "gradwire/backend/registry.h"
#include "gradwire/store/hash_store.h"

namespace gradwire::bench {
namespace {

struct alignas(128) Flag {
  std::atomic<std::uint64_t> value{0};
};

constexpr int kRounds = 10;
constexpr int kCalls = 20000;

template <class Call>
double nanoseconds_a_call(Call&& call) {
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < kCalls; ++i) call();
  const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - begin;
  return took.count() / kCalls;
}

}  // namespace

void print_contract_cost(bool pin) {
  const auto store = std::make_shared<HashStore>();
  Flag flags[2];
  std::vector<double> bare;
  std::vector<double> whole;
  const auto rank = [&](int number) {
    if (pin) pin_to_processor(number);
    const auto backend = make_backend("threads", {store, number, 2});
    std::uint64_t step = 0;
    const auto bare_barrier = [&] {
      ++step;
      flags[number].value.store(step, std::memory_order_release);
      while (flags[1 - number].value.load(std::memory_order_acquire) < step) {
      }
    };
    for (int round = 0; round < kRounds; ++round) {
      const double without = nanoseconds_a_call(bare_barrier);
      const double with = nanoseconds_a_call([&] { backend->channel().barrier({}); });
      if (number == 0) {
        bare.push_back(without);
        whole.push_back(with);
      }
    }
  };
  {
    const std::jthread other(rank, 1);
    const std::jthread self(rank, 0);
  }
  std::printf(
      "contracts: a barrier with fingerprints, deadline and checks takes %.0f ns, a bare one of two flags %.0f ns: "
      "%.0f ns a call\n",
      median_of(whole), median_of(bare), median_of(whole) - median_of(bare));
}

}  // namespace gradwire::bench
