// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Counts what a rank of the backend ucx asks the store and sends to other ranks until it may begin, and tests that this
// grows as the logarithm of the number of ranks. The ranks are threads, the network is mailboxes.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <iostream>
#include <set>
#include <span>
#include <thread>

#include "gradwire/backend/ucx/meeting_internal.h"
#include "gradwire/backend/ucx/partners_internal.h"
#include "gradwire/store/handshake_internal.h"
#include "gradwire/store/hash_store.h"
#include "tests/conformance/loopback_channel.h"
#include "tests/conformance/world.h"
#include "tests/support/counting_store.h"

namespace gradwire::testing {
namespace {

// Counts the calls of one rank. A wait is one call: how often it is begun again depends on the machine's speed.
class CallsOfARank final : public test_support::CountingStore {
 public:
  using CountingStore::CountingStore;
  using CountingStore::wait;
  void wait(std::span<const std::string> keys, Milliseconds) override { CountingStore::wait(keys, kGuard); }
};

struct Cost {
  int calls = 0;     // of the store
  int messages = 0;  // to ranks
};

// The most that any of `size` ranks needs.
Cost cost_of_start(int size) {
  const auto store = std::make_shared<HashStore>();
  const auto hub = std::make_shared<LoopbackHub>(size);
  std::vector<Cost> costs(static_cast<std::size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      const auto counting = std::make_shared<CallsOfARank>(store);
      const BackendOptions options{counting, rank, size, kGuard};
      const Deadline deadline = Deadline::after(kGuard);
      const auto partners = ucx::partners_of(rank, size);
      EXPECT_EQ(ucx::count_ranks_on(rank % 2 == 0 ? "even" : "odd", options, partners, deadline), size / 2);
      const std::string sealed = ucx::encode_record(
          {"a host", store_internal::random_challenge(), Milliseconds(1), std::string(100, 'a')}, rank, "secret");
      const auto records = ucx::exchange_records(options, partners, sealed, "secret", deadline);
      for (const int partner : partners) EXPECT_EQ(records[static_cast<std::size_t>(partner)].host, "a host");
      // As learn_the_rest() and the barrier after it.
      LoopbackChannel channel(hub, "0", rank);
      // How often a note says who is missing goes by the time limit; few notes, however slow the machine is.
      const CallOptions patient{Deadline::after(std::chrono::minutes(10)), {}};
      auto longest = static_cast<std::int64_t>(sealed.size());
      channel.all_reduce(&longest, 1, DType::i64, ReduceOp::max(), patient);
      std::string all(sealed.size() * static_cast<std::size_t>(size), ' ');
      std::vector<void*> outputs;
      for (std::size_t r = 0; r < static_cast<std::size_t>(size); ++r) outputs.push_back(&all[r * sealed.size()]);
      channel.all_gather(sealed.data(), outputs, sealed.size(), DType::u8, patient);
      channel.barrier(patient);
      for (int r = 0; r < size; r += 17) {
        EXPECT_EQ(
            ucx::decode_record(all.substr(static_cast<std::size_t>(r) * sealed.size(), sealed.size()), r, "secret")
                .host,
            "a host");
      }
      // Each partner gets a first word, too.
      costs[static_cast<std::size_t>(rank)] = {counting->calls(), static_cast<int>(hub->sent(rank) + partners.size())};
    });
  }
  for (std::thread& thread : threads) thread.join();
  Cost most;
  for (const Cost& cost : costs) {
    most.calls = std::max(most.calls, cost.calls);
    most.messages = std::max(most.messages, cost.messages);
  }
  return most;
}

TEST(UcxStart, TakesOfTheOrderOfLogNCallsAndMessages) {
  for (const int size : {32, 64, 128, 256, 512, 1024}) {
    const int steps = std::bit_width(static_cast<unsigned>(size)) - 1;
    const Cost cost = cost_of_start(size);
    std::cout << size << " ranks: at most " << cost.calls << " calls of the store and " << cost.messages
              << " messages a rank\n";
    EXPECT_LE(cost.calls, 4 * steps + 6);
    // A first word and the answer to it in each direction; three entries, of which a note may say who is missing; the
    // addresses.
    EXPECT_LE(cost.messages, 3 * 3 * steps + steps + 2 * steps + 3 * 8 * steps);
  }
}

TEST(UcxPartners, ArePartnersOfEachOtherAndReachEveryoneInLogNSteps) {
  for (const int size : {1, 2, 3, 16, 17, 31, 64, 100, 1000}) {
    int steps = 0;
    while (1 << steps < size) ++steps;
    std::set<int> reached{0};
    for (int step = 0; step < steps; ++step) {
      for (const int rank : std::set<int>(reached)) {
        for (const int partner : ucx::partners_of(rank, size)) reached.insert(partner);
      }
    }
    EXPECT_EQ(reached.size(), static_cast<std::size_t>(size));
    for (int rank = 0; rank < size; ++rank) {
      const auto partners = ucx::partners_of(rank, size);
      EXPECT_LE(partners.size(), static_cast<std::size_t>(std::max(2 * steps, ucx::kFullMeshRanks - 1)));
      for (const int partner : partners) {
        const auto theirs = ucx::partners_of(partner, size);
        EXPECT_TRUE(std::find(theirs.begin(), theirs.end(), rank) != theirs.end()) << rank << " and " << partner;
      }
    }
  }
}

}  // namespace
}  // namespace gradwire::testing
