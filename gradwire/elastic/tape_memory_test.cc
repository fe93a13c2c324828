// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Memory for the entries of a tape: what a step took is ready for the next one, with pages that were written to; rows
// do not share memory; memory that was given back serves again, and sizes that nobody takes any more are given up.
#include "gradwire/elastic/tape_memory_internal.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <memory>
#include <optional>
#include <set>
#include <thread>
#include <vector>

namespace gradwire::tape_memory_test {
namespace {

using internal::TapeMemory;

constexpr std::size_t kBytes = (std::size_t{4} << 20) + 5;

void wait_for_ready(const TapeMemory& memory, std::size_t bytes) {
  while (memory.ready_bytes() != bytes) std::this_thread::yield();
}

// Whether all pages of a row are in memory.
bool is_resident(const at::Tensor& row) {
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  std::vector<unsigned char> pages((row.nbytes() + page - 1) / page);
  EXPECT_EQ(::mincore(row.mutable_data_ptr(), row.nbytes(), pages.data()), 0);
  return std::all_of(pages.begin(), pages.end(), [](unsigned char of_page) { return (of_page & 1) != 0; });
}

TEST(TapeMemoryTest, WhatAStepTookIsReadyForTheNextOne) {
  const auto memory = std::make_shared<TapeMemory>();
  std::vector<at::Tensor> rows;
  for (int step = 0; step < 3; ++step) {
    memory->begin_step();
    wait_for_ready(*memory, step == 0 ? 0 : 2 * kBytes);
    for (int i = 0; i < 2; ++i) {
      rows.push_back(memory->take(kBytes));
      EXPECT_EQ(rows.back().nbytes(), kBytes);
      EXPECT_EQ(is_resident(rows.back()), step > 0) << "step " << step;
      rows.back().fill_(step * 2 + i);
    }
  }
  for (std::size_t i = 0; i < rows.size(); ++i)
    EXPECT_TRUE(rows[i].eq(static_cast<int>(i)).all().item<bool>()) << "row " << i << " has memory of its own";
}

TEST(TapeMemoryTest, WhatIsExpectedIsReadyForTheNextStep) {
  const auto memory = std::make_shared<TapeMemory>();
  for (int i = 0; i < 2; ++i) memory->expect(kBytes);
  memory->expect(3);
  memory->begin_step();
  wait_for_ready(*memory, 2 * kBytes);
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(is_resident(memory->take(kBytes)));
}

TEST(TapeMemoryTest, MemoryOfRowsThatAreGoneServesAgain) {
  const auto memory = std::make_shared<TapeMemory>();
  std::set<const void*> places;
  for (int step = 0; step < 20; ++step) {
    memory->begin_step();
    wait_for_ready(*memory, step == 0 ? 0 : kBytes);
    const at::Tensor row = memory->take(kBytes);
    places.insert(row.const_data_ptr());
  }
  EXPECT_EQ(places.size(), 1U);
}

TEST(TapeMemoryTest, SizesThatNobodyTakesAnyMoreAreGivenUp) {
  const auto memory = std::make_shared<TapeMemory>();
  std::optional<at::Tensor> row = memory->take(kBytes);
  memory->begin_step();
  wait_for_ready(*memory, kBytes);
  for (int step = 0; step < 4; ++step) memory->begin_step();
  EXPECT_EQ(memory->ready_bytes(), 0U);
  row.reset();
  EXPECT_EQ(memory->ready_bytes(), 0U);
}

TEST(TapeMemoryTest, RowsOutliveTheMemoryAndMayBeSmall) {
  auto memory = std::make_shared<TapeMemory>();
  const at::Tensor row = memory->take(kBytes);
  const at::Tensor small = memory->take(3);
  const at::Tensor none = memory->take(0);
  memory.reset();
  row.fill_(7);
  EXPECT_TRUE(row.eq(7).all().item<bool>());
  EXPECT_EQ(small.nbytes(), 3U);
  EXPECT_EQ(none.nbytes(), 0U);
}

}  // namespace
}  // namespace gradwire::tape_memory_test
