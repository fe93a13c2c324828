// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Elastic jobs whose members are threads, and the serial program that does the same steps.
#pragma once

#include <gtest/gtest.h>
#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "gradwire/ddp/ddp_test_support.h"
#include "gradwire/elastic/elastic.h"
#include "gradwire/membership/coordinator.h"

namespace gradwire::testing {

// What a member throws that a test takes out of the job.
struct Killed : std::runtime_error {
  Killed() : std::runtime_error("this member is lost on purpose") {}
};

// How many members have joined, by the journal of the coordinator.
inline std::int64_t joined_members(const std::string& journal) {
  std::ifstream lines(journal);
  std::int64_t count = 0;
  for (std::string line; std::getline(lines, line);) count += line.find("\tjoined\t") != std::string::npos ? 1 : 0;
  return count;
}

// The data of rank `rank` of `size` in a step.
inline at::Tensor samples(const ElasticStep& at) {
  return random_tensor({4, 8}, static_cast<int>(at.step * 1000 + at.size * 100 + at.rank));
}

inline at::Tensor loss_of(const at::Tensor& output) { return output.square().sum(); }

inline torch::optim::SGDOptions sgd() { return torch::optim::SGDOptions(0.05).momentum(0.9); }

inline DdpOptions options_over(const Elastic& elastic) {
  DdpOptions options;
  options.process_group = elastic.group();
  return options;
}

// A small net in DDP and its optimizer, added to a member of a job.
struct SmallTraining {
  explicit SmallTraining(Elastic& elastic) : ddp(net, options_over(elastic)), optimizer(ddp.parameters(), sgd()) {
    elastic.add(ddp).add(optimizer);
  }
  Mlp net;
  DistributedDataParallel<Mlp> ddp;
  torch::optim::SGD optimizer;
};

inline void add_to(std::vector<at::Tensor>& sums, const std::vector<at::Tensor>& parts) {
  if (sums.empty()) {
    for (const at::Tensor& part : parts) sums.push_back(part.clone());
    return;
  }
  for (std::size_t i = 0; i < parts.size(); ++i) sums[i].add_(parts[i]);
}

// What a serial program does.
struct SerialProgram {
  // Its optimizer; the default steps as the jobs of elastic_test.cc do.
  std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<at::Tensor> parameters)> optimizer =
      [](std::vector<at::Tensor> parameters) {
        return std::make_unique<torch::optim::SGD>(std::move(parameters), sgd());
      };
  // Called before each step.
  std::function<void(std::int64_t step, torch::optim::Optimizer& optimizer)> before_step =
      [](std::int64_t, torch::optim::Optimizer&) {};
};

inline torch::optim::AdamOptions adam_options() { return torch::optim::AdamOptions(0.01); }

// The same with Adam.
inline SerialProgram adam() {
  SerialProgram program;
  program.optimizer = [](std::vector<at::Tensor> parameters) {
    return std::make_unique<torch::optim::Adam>(std::move(parameters), adam_options());
  };
  return program;
}

// The parameters after hosts.size() steps, when step s is done by ranks on the hosts hosts[s]: one rank after the other
// computes its gradients, and the averages are formed as gradwire's groups form them, within each host first.
inline std::vector<at::Tensor> serial_parameters(const std::vector<std::vector<std::string>>& hosts,
                                                 const SerialProgram& program = {}) {
  Mlp net;
  const auto optimizer = program.optimizer(net->parameters());
  for (std::size_t step = 0; step < hosts.size(); ++step) {
    program.before_step(static_cast<std::int64_t>(step), *optimizer);
    const int size = static_cast<int>(hosts[step].size());
    std::vector<std::string> order;
    std::map<std::string, std::vector<at::Tensor>> sums;
    for (int rank = 0; rank < size; ++rank) {
      net->zero_grad();
      loss_of(net->forward(samples({static_cast<std::int64_t>(step), rank, size, 0}))).backward();
      std::vector<at::Tensor> parts;
      for (const at::Tensor& gradient : gradients_of(*net))
        parts.push_back(gradient.mul(static_cast<float>(1.0 / size)));
      const std::string& host = hosts[step][static_cast<std::size_t>(rank)];
      if (!sums.contains(host)) order.push_back(host);
      add_to(sums[host], parts);
    }
    std::vector<at::Tensor> averages;
    for (const std::string& host : order) add_to(averages, sums[host]);
    std::size_t i = 0;
    for (auto& parameter : net->parameters()) parameter.mutable_grad() = averages[i++];
    optimizer->step();
  }
  return net->parameters();
}

// The same on one host, with sizes[s] ranks.
inline std::vector<at::Tensor> serial_parameters(const std::vector<int>& sizes, const SerialProgram& program = {}) {
  std::vector<std::vector<std::string>> hosts;
  for (const int size : sizes) hosts.emplace_back(static_cast<std::size_t>(size));
  return serial_parameters(hosts, program);
}

inline void expect_equal_bits(const std::vector<at::Tensor>& actual, const std::vector<at::Tensor>& expected,
                              const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < actual.size(); ++i) {
    EXPECT_TRUE(actual[i].equal(expected[i]))
        << what << ", tensor " << i << " differs by at most " << (actual[i] - expected[i]).abs().max().item<double>();
  }
}

// The hosts of the ranks that did each step, as the journal says.
inline std::vector<std::vector<std::string>> hosts_of(const std::string& journal, std::int64_t steps) {
  std::vector<std::vector<std::string>> hosts(static_cast<std::size_t>(steps));
  for (const membership::PlayedEpoch& epoch : membership::read_membership_log(journal)) {
    for (std::int64_t step = epoch.first_step; step < steps; ++step)
      hosts[static_cast<std::size_t>(step)] = epoch.hosts;
  }
  return hosts;
}

// How many ranks did each step, as the journal says.
inline std::vector<int> sizes_of(const std::string& journal, std::int64_t steps) {
  std::vector<int> sizes;
  for (const auto& hosts : hosts_of(journal, steps)) sizes.push_back(static_cast<int>(hosts.size()));
  return sizes;
}

// The store, the journal and the coordinator of a job. The coordinator runs on a thread until the destructor.
class ElasticJob {
 public:
  // `more` changes the coordinator's other options.
  explicit ElasticJob(membership::RosterOptions roster,
                      const std::function<void(membership::CoordinatorOptions& options)>& more = nullptr) {
    std::string pattern = (std::filesystem::temp_directory_path() / "gw-elastic-XXXXXX").string();
    if (::mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("no temporary folder");
    folder_ = pattern;
    membership::CoordinatorOptions options;
    options.roster = roster;
    options.journal = journal();
    options.tell = [this](const std::string& sentence) {
      const std::lock_guard lock(mutex_);
      told_.push_back(sentence);
    };
    if (more) more(options);
    coordinator_ = std::make_unique<membership::Coordinator>(store_, options);
    thread_ = std::thread([this] { coordinator_->run(stop_); });
  }
  ~ElasticJob() {
    stop_ = true;
    thread_.join();
    coordinator_.reset();
    std::filesystem::remove_all(folder_);
  }
  std::string journal() const { return folder_ / "journal"; }
  const std::shared_ptr<Store>& store() const { return store_; }
  // What the coordinator told the user of a job that its members have finished.
  std::vector<std::string> told() const {
    const std::lock_guard lock(mutex_);
    return told_;
  }
  // The coordinator's decision under `key`; waits for it.
  std::string decided(const std::string& key) const {
    store_->wait(std::span(&key, 1), std::chrono::seconds(60));
    return store_->get(key);
  }
  ElasticOptions options(const std::string& backend = "threads") const {
    ElasticOptions options;
    options.store = store_;
    options.backend = backend;
    options.leave_on_sigterm = false;  // the members are threads of one process
    options.timeout = std::chrono::seconds(60);
    return options;
  }

 private:
  std::filesystem::path folder_;
  mutable std::mutex mutex_;
  std::vector<std::string> told_;
  std::shared_ptr<Store> store_ = std::make_shared<HashStore>();
  std::atomic<bool> stop_{false};
  std::unique_ptr<membership::Coordinator> coordinator_;
  std::thread thread_;
};

// The members of a job that begins with three of them, loses one, and gets another.
class ChangingMembers {
 public:
  // Lets the fourth member begin.
  void start_another() { starts_another_ = true; }
  // Each member is a thread that calls `train`. Returns the parameters of those that `train` returned; a Killed member
  // has none. Any other exception fails the test.
  std::vector<std::vector<at::Tensor>> run(const std::function<std::vector<at::Tensor>()>& train) {
    std::mutex mutex;
    std::vector<std::vector<at::Tensor>> ends;
    const auto member = [&] {
      try {
        std::vector<at::Tensor> parameters = train();
        const std::lock_guard lock(mutex);
        ends.push_back(std::move(parameters));
      } catch (const Killed&) {
      } catch (const std::exception& error) {
        ADD_FAILURE() << error.what();
        start_another();
      }
    };
    std::list<std::thread> threads;
    for (int i = 0; i < 3; ++i) threads.emplace_back(member);
    while (!starts_another_) std::this_thread::yield();
    threads.emplace_back(member);
    for (auto& thread : threads) thread.join();
    return ends;
  }
  // `sizes`: as sizes_of(). One of three was lost in the step `lost_at`, and the last steps were those of three again.
  static void expect_change(const std::vector<int>& sizes, std::size_t lost_at) {
    EXPECT_EQ(sizes.at(lost_at - 1), 3);
    EXPECT_EQ(sizes.at(lost_at + 5), 2);
    EXPECT_EQ(sizes.back(), 3) << "the new member came too late";
  }

 private:
  std::atomic<bool> starts_another_{false};
};

}  // namespace gradwire::testing
