// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// What the workers of an elastic job tell the test that started them.
#pragma once

#include <ATen/Parallel.h>
#include <poll.h>
#include <torch/serialize.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "gradwire/elastic/elastic.h"
#include "tests/elastic/elastic_page.h"

namespace gradwire::testing {

class WorkerReport {
 public:
  explicit WorkerReport(const std::string& folder) : folder_(folder), page_(folder + "/page") {}

  // At the beginning of a step: tells of a new epoch, and waits until the test lets the job do this step.
  void begin_step(const ElasticStep& at) {
    if (at.follows) {  // the members wait
      constexpr int kWithoutState = 3;
      if (++followed_ > kWithoutState) ++page_->followed;
      return;
    }
    const std::int64_t begin = now();
    between_ = last_end_ == 0 ? 0 : begin - last_end_;
    tell(at);
    while (at.step >= page_->budget) ::poll(nullptr, 0, 1);
    step_begin_ = now();
  }
  void end_step(const ElasticStep& at) {
    if (at.follows) return;
    page_->newest_step = at.step;
    last_end_ = now();
    // The first step of an epoch waits for those that come to the epoch late.
    if (!std::exchange(first_of_epoch_, false)) times_.push_back(between_ + last_end_ - step_begin_);
  }

  // Writes `state` for the test, when the job has finished.
  void end(ElasticEnd end, std::vector<at::Tensor> state) const {
    if (end == ElasticEnd::left) std::puts("left in good order");
    if (end == ElasticEnd::dropped) std::puts("left because it is slow");
    if (end != ElasticEnd::finished) return;
    for (at::Tensor& tensor : state) tensor = tensor.detach();
    const std::string name = std::to_string(::getpid());
    torch::save(state, folder_ + "/unfinished-" + name);
    std::filesystem::rename(folder_ + "/unfinished-" + name, folder_ + "/final-" + name);
  }

 private:
  static std::int64_t now() { return std::chrono::steady_clock::now().time_since_epoch().count(); }
  void tell(const ElasticStep& at) {
    if (at.epoch == epoch_) return;
    epoch_ = at.epoch;
    first_of_epoch_ = true;
    ElasticPage::Entry& entry = page_->entries.at(static_cast<std::size_t>(page_->entry_count++));
    entry.epoch = at.epoch;
    entry.step = at.step;
    entry.size = at.size;
    entry.nanoseconds = now();
    entry.pause = std::exchange(between_, 0);
    if (!times_.empty()) {
      std::vector<std::int64_t> sorted = std::exchange(times_, {});
      std::sort(sorted.begin(), sorted.end());
      entry.median = sorted[sorted.size() / 2];
      entry.lost = entry.pause;
      for (const std::int64_t time : sorted) entry.lost += std::max<std::int64_t>(time - entry.median, 0);
    }
    entry.pid = ::getpid();
  }

  const std::string folder_;
  const SharedElasticPage page_;
  int followed_ = 0;  // steps
  std::int64_t epoch_ = 0;
  bool first_of_epoch_ = false;
  std::int64_t last_end_ = 0;  // of a step
  std::int64_t step_begin_ = 0;
  std::int64_t between_ = 0;         // from the end of a step to the beginning of the next one
  std::vector<std::int64_t> times_;  // of the steps of the present epoch, with the time before each
};

// main() of a worker: `name` STEPS FOLDER.
template <class Run>
int worker_main(const char* name, int argc, char** argv, const Run& run) {
  if (argc != 3) return 2;
  try {
    at::set_num_threads(1);
    run(std::atoll(argv[1]), argv[2]);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", name, error.what());
    return 1;
  }
}

}  // namespace gradwire::testing
