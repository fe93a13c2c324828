// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Symbols as the linker has them, and as a report shows them.
#include <gtest/gtest.h>

#include "gradwire/observe/readable_symbol_internal.h"

namespace gradwire::observe::readable_symbol_test {
namespace {

TEST(ReadableSymbol, ShowsTheNameAndNoMore) {
  // Written by GCC 12 for functions of gradwire and of test programs.
  const std::pair<const char*, const char*> cases[] = {
      {"_ZN8gradwire12ProcessGroup10all_reduceESt6vectorIN2at6TensorESaIS3_EERKNS_16AllReduceOptionsE",
       "gradwire::ProcessGroup::all_reduce"},
      {"_ZNK8gradwire12ProcessGroup4rankEv", "gradwire::ProcessGroup::rank"},
      {"_ZN12_GLOBAL__N_15trainERKSt6vectorIiSaIiEE", "train"},
      {"_Z3sumIiET_S0_S0_", "sum"},
      {"_ZN8gradwire3MapISt6vectorIiSaIiEEE3getEv", "gradwire::Map::get"},
      {"_ZNK5PointltERKS_", "Point::operator<"},
      {"_ZNK5PointclEi", "Point::operator()"},
      {"_ZZ4mainENKUliE_clEi", "main::{lambda#1}::operator()"},
      {"main", "main"},
      {"", ""},
  };
  for (const auto& [symbol, name] : cases) EXPECT_EQ(readable_symbol(symbol), name) << symbol;
}

TEST(ReadableSymbol, TheEndOfALongNameStays) {
  EXPECT_EQ(keep_end("abcdef", 6), "abcdef");
  EXPECT_EQ(keep_end("abcdefg", 6), "...efg");
}

}  // namespace
}  // namespace gradwire::observe::readable_symbol_test
