// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// What a job of elastic_worker.cc leaves behind, for the tests that start one: where each worker was, the journal, and
// the parameters at the end.
#pragma once

#include <gtest/gtest.h>
#include <torch/serialize.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gradwire/base/strings.h"
#include "gradwire/elastic/elastic_test_support.h"
#include "tests/elastic/elastic_page.h"

namespace gradwire::testing {

class ElasticRecord {
 public:
  using Clock = std::chrono::steady_clock;

  struct Entry {
    std::int64_t pid = 0;
    std::int64_t epoch = 0;
    std::int64_t size = 0;
    std::int64_t nanoseconds = 0;
    std::int64_t pause = 0;
    std::int64_t lost = 0;
    std::int64_t median = 0;
  };

  // Of a job of `steps` steps in `folder`, which is made.
  ElasticRecord(const std::string& folder, std::int64_t steps) : folder_(folder), steps_(steps), page_(made(folder)) {}

  const std::string& folder() const { return folder_; }
  std::string journal() const { return folder_ + "/memberships"; }
  const SharedElasticPage& page() const { return page_; }

  // Waits until all members of an epoch of at least `size` members do its first step, and returns their processes. The
  // epoch is newer than `after`, which becomes its number. Meanwhile the job goes on slowly, a step each `pace`, so
  // that it has steps left.
  std::vector<std::int64_t> wait_for_epoch(std::int64_t size, std::int64_t& after,
                                           std::chrono::milliseconds pace = std::chrono::milliseconds(10)) const {
    const auto guard = Clock::now() + std::chrono::seconds(60);
    auto next_step = Clock::now();
    while (Clock::now() < guard) {
      std::map<std::int64_t, std::set<std::int64_t>> members;  // by epoch
      std::map<std::int64_t, std::int64_t> sizes;
      for (const Entry& entry : entries()) {
        members[entry.epoch].insert(entry.pid);
        sizes[entry.epoch] = entry.size;
      }
      if (!sizes.empty()) {
        const auto [newest, its_size] = *sizes.rbegin();
        const auto& there = members[newest];
        if (newest > after && its_size >= size && static_cast<std::int64_t>(there.size()) == its_size) {
          after = newest;
          return {there.begin(), there.end()};
        }
      }
      if (const auto now = Clock::now(); now >= next_step) {
        go_on();
        // Members in the last step reach no boundary any more, so steps must be left however long this takes.
        const std::int64_t left = std::max<std::int64_t>(1, steps_ - 1 - page_->budget);
        next_step = now + std::max<Clock::duration>(pace, (guard - now) / (3 * left));
      }
      std::this_thread::sleep_for(std::min(pace, std::chrono::milliseconds(10)));
    }
    throw std::runtime_error(concat("no epoch of ", size, " members comes after epoch ", after));
  }

  // Lets the job do one step more, but not the last one.
  void go_on() const { page_->budget = std::min(page_->budget + 1, steps_ - 1); }

  // The time from a moment, at which `lost` were in the present epoch, until the last of the others begins a step of
  // the next epoch; nothing when there is none.
  std::optional<double> recovery_ms(std::int64_t lost, std::int64_t at_nanoseconds) const {
    std::map<std::int64_t, std::int64_t> epoch_of;
    const std::vector<Entry> all = entries();
    for (const Entry& entry : all) {
      if (entry.nanoseconds <= at_nanoseconds) epoch_of[entry.pid] = entry.epoch;
    }
    const std::int64_t broken = epoch_of[lost];
    std::int64_t next = 0;
    for (const Entry& entry : all) {
      if (entry.nanoseconds > at_nanoseconds && entry.epoch > broken && (next == 0 || entry.epoch < next))
        next = entry.epoch;
    }
    std::int64_t last = 0;
    for (const Entry& entry : all) {
      if (entry.epoch == next && epoch_of[entry.pid] == broken) last = std::max(last, entry.nanoseconds);
    }
    if (next == 0 || last == 0) return std::nullopt;
    return static_cast<double>(last - at_nanoseconds) / 1e6;
  }

  // The most that a member lost because of `epoch`, and the time of a step of that member, in seconds.
  std::pair<double, double> lost_before(std::int64_t epoch) const {
    std::pair<std::int64_t, std::int64_t> most{0, 0};
    for (const Entry& entry : entries()) {
      if (entry.epoch == epoch) most = std::max(most, {entry.lost, entry.median});
    }
    return {static_cast<double>(most.first) / 1e9, static_cast<double>(most.second) / 1e9};
  }

  // The longest time that a member had to wait between two steps because of `epoch`, in seconds.
  double pause_before(std::int64_t epoch) const {
    std::int64_t longest = 0;
    for (const Entry& entry : entries()) longest = entry.epoch == epoch ? std::max(longest, entry.pause) : longest;
    return static_cast<double>(longest) / 1e9;
  }

  // The members that finished hold the bits of the serial program that does each step with the ranks of the journal.
  void expect_serial_bits(const SerialProgram& program = {}) const {
    const std::vector<std::vector<std::string>> hosts = hosts_of(journal(), steps_);
    ASSERT_EQ(std::count(hosts.begin(), hosts.end(), std::vector<std::string>()), 0)
        << "no epoch of the journal has it";
    const auto expected = serial_parameters(hosts, program);
    const auto ends = finals();
    EXPECT_FALSE(ends.empty());
    for (const auto& parameters : ends) expect_equal_bits(parameters, expected, "a member's parameters at the end");
  }

  // This job is a replay of `original`: as many ranks did each step, on the same hosts, and it ended with the same
  // bits.
  void expect_replay_of(const ElasticRecord& original) const {
    EXPECT_EQ(hosts_of(journal(), steps_), hosts_of(original.journal(), steps_));
    const auto expected = original.finals();
    const auto played = finals();
    ASSERT_FALSE(expected.empty());
    ASSERT_FALSE(played.empty());
    for (const auto& parameters : played) expect_equal_bits(parameters, expected.front(), "the replay");
  }

  // The parameters that the members ended with.
  std::vector<std::vector<at::Tensor>> finals() const {
    std::vector<std::vector<at::Tensor>> finals;
    for (const auto& file : std::filesystem::directory_iterator(folder_)) {
      if (!file.path().filename().string().starts_with("final-")) continue;
      torch::load(finals.emplace_back(), file.path());
    }
    return finals;
  }

 private:
  static std::string made(const std::string& folder) {
    std::filesystem::create_directory(folder);
    return folder + "/page";
  }
  std::vector<Entry> entries() const {
    std::vector<Entry> all;
    for (std::int64_t i = 0; i < page_->entry_count; ++i) {
      const ElasticPage::Entry& entry = page_->entries[static_cast<std::size_t>(i)];
      if (entry.pid != 0)
        all.push_back({entry.pid, entry.epoch, entry.size, entry.nanoseconds, entry.pause, entry.lost, entry.median});
    }
    return all;
  }

  const std::string folder_;
  const std::int64_t steps_;
  const SharedElasticPage page_;
};

}  // namespace gradwire::testing
