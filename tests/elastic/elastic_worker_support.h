// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// What the workers of an elastic job tell the test that started them.
#pragma once

#include <ATen/Parallel.h>
#include <poll.h>
#include <torch/serialize.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <string>
#include <vector>

#include "gradwire/elastic/elastic.h"
#include "tests/elastic/elastic_page.h"

namespace gradwire::testing {

class WorkerReport {
 public:
  explicit WorkerReport(const std::string& folder) : folder_(folder), page_(folder + "/page") {}

  // At the beginning of a step: tells of a new epoch, and waits until the test lets the job do this step.
  void begin_step(const ElasticStep& at) {
    tell(at);
    while (at.step >= page_->budget) ::poll(nullptr, 0, 1);
  }
  void end_step(const ElasticStep& at) {
    page_->newest_step = at.step;
    last_end_ = now();
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
    ElasticPage::Entry& entry = page_->entries.at(static_cast<std::size_t>(page_->entry_count++));
    entry.epoch = at.epoch;
    entry.step = at.step;
    entry.size = at.size;
    entry.nanoseconds = now();
    entry.pause = last_end_ == 0 ? 0 : entry.nanoseconds - last_end_;
    entry.pid = ::getpid();
  }

  const std::string folder_;
  const SharedElasticPage page_;
  std::int64_t epoch_ = 0;
  std::int64_t last_end_ = 0;  // of a step
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
