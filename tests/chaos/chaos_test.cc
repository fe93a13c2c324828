// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Random faults, each determined by a number: no rank hangs, no result is wrong, every death is named, and nothing
// stays behind. A failure prints its number; GRADWIRE_CHAOS_SEED=<number> runs that fault alone.
// GRADWIRE_CHAOS_FAULTS=<count> sets the number of faults of the slow test, and GRADWIRE_CHAOS_FIRST=<number> its first
// fault. docs/testing.md explains the table.
#include <gtest/gtest.h>

#include <cstdlib>
#include <iostream>

#include "gradwire/base/environment.h"
#include "gradwire/base/strings.h"
#include "tests/chaos/play.h"

namespace gradwire::testing {
namespace {

constexpr std::uint64_t kFewFaults = 136;
constexpr std::uint64_t kManyFaults = 1000;

std::uint64_t number_from(const char* variable, std::uint64_t otherwise) {
  const auto text = environment(variable);
  return text ? std::strtoull(text->c_str(), nullptr, 10) : otherwise;
}

// Says at once what goes wrong, and fails at the end: the ranks are forked from this process, and one that finds the
// test failed plays no further.
void play_faults(std::uint64_t first, std::uint64_t count) {
  Tally tally;
  std::string texts;
  for (std::uint64_t seed = first; seed < first + count; ++seed) {
    const Fault fault = draw_fault(seed);
    const Outcome outcome = play(fault);
    tally.add(fault, outcome);
    for (const std::string& text : outcome.texts) {
      std::cout << fault << ": " << text << std::endl;
      texts += concat("fault ", seed, ": ", text, "\n");
    }
  }
  tally.print(std::cout);
  if (!texts.empty()) ADD_FAILURE() << texts;
  EXPECT_EQ(tally.faults(), static_cast<int>(count));
}

TEST(Chaos, AHundredFaults) {
  if (const auto one = environment("GRADWIRE_CHAOS_SEED")) return play_faults(number_from("GRADWIRE_CHAOS_SEED", 0), 1);
  play_faults(0, kFewFaults);
}

TEST(ChaosAtLength, AThousandFaults) {
  play_faults(number_from("GRADWIRE_CHAOS_FIRST", kManyFaults), number_from("GRADWIRE_CHAOS_FAULTS", kManyFaults));
}

TEST(Chaos, EveryClassIsAmongTheFaultsOfTheShortTest) {
  std::set<std::string> seen;
  for (std::uint64_t seed = 0; seed < kFewFaults; ++seed) seen.insert(draw_fault(seed).what->name);
  for (const FaultClass& each : fault_classes()) EXPECT_EQ(seen.count(each.name), 1U) << each.name;
}

}  // namespace
}  // namespace gradwire::testing
