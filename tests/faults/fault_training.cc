// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// A training loop with DistributedDataParallel, for fault_matrix.py and healthy.py:
//
//   fault_training NAME=VALUE...
//
// Before each call of a step the program prints "at SITE STEP NANOSECONDS", so that a test knows from the ranks
// themselves where each rank was. The rank `rank` does something wrong in step `step` at `site`, and prints
// "injected FAULT NANOSECONDS" before. The times are of CLOCK_MONOTONIC.
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "gradwire/base/strings.h"
#include "gradwire/ddp/distributed_data_parallel.h"
#include "gradwire/nn/sync_batch_norm.h"
#include "gradwire/process_group/init.h"

namespace gradwire {
namespace {

using Group = std::shared_ptr<ProcessGroup>;

constexpr int kWidth = 64;
constexpr int kEvaluateEvery = 4;

std::int64_t clock_in_nanoseconds(clockid_t clock) {
  timespec time{};
  ::clock_gettime(clock, &time);
  return std::int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

// One write for each line: lanes print too.
void print(const std::string& text) {
  const std::string line = concat(text, " ", clock_in_nanoseconds(CLOCK_MONOTONIC), "\n");
  [[maybe_unused]] const auto written = ::write(STDOUT_FILENO, line.data(), line.size());
}

// The arguments, as text.
class Settings {
 public:
  Settings(int argc, char** argv) {
    for (int i = 1; i < argc; ++i) {
      const std::string word = argv[i];
      const auto equals = word.find('=');
      if (equals == std::string::npos) throw std::runtime_error("expected NAME=VALUE, found " + word);
      values_[word.substr(0, equals)] = word.substr(equals + 1);
    }
  }
  std::string text(const std::string& name) const {
    const auto found = values_.find(name);
    return found == values_.end() ? "" : found->second;
  }
  double number(const std::string& name, double otherwise = 0) const {
    const std::string value = text(name);
    return value.empty() ? otherwise : std::stod(value);
  }

 private:
  std::map<std::string, std::string> values_;
};

// Computes for so many seconds of this thread's processor time.
void compute(double seconds) {
  const std::int64_t end = clock_in_nanoseconds(CLOCK_THREAD_CPUTIME_ID) + static_cast<std::int64_t>(seconds * 1e9);
  at::Tensor value = at::ones({kWidth, kWidth}) / kWidth;
  while (clock_in_nanoseconds(CLOCK_THREAD_CPUTIME_ID) < end) value = at::matmul(value, value);
}

void pause(double seconds) { ::poll(nullptr, 0, static_cast<int>(seconds * 1e3)); }

// The kinds of calls that never return, by `way`.
void wait_for_a_file(const std::string& way, const std::string& path) {
  int ends[2];
  char byte = 0;
  if (way == "lock") {
    const int file = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
    ::flock(file, LOCK_EX);  // the test holds the lock
  } else if (way == "fifo") {
    [[maybe_unused]] const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);  // nobody writes
  } else if (way == "socket" && ::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0) {
    [[maybe_unused]] const auto count = ::recv(ends[0], &byte, 1, 0);
  } else if (::pipe2(ends, O_CLOEXEC) == 0) {
    std::thread reader_ahead;
    // Samples are read ahead by a thread that computes meanwhile.
    if (way == "busy_loader") reader_ahead = std::thread([] { compute(600); });
    [[maybe_unused]] const auto count = ::read(ends[0], &byte, 1);
    if (reader_ahead.joinable()) reader_ahead.join();
  }
}

// Allocates until memory runs out. With `way` "kernel" the kernel kills the process: the test has put the job in a
// control group with a limit.
void run_out_of_memory(const std::string& way) {
  if (way != "kernel") {
    const rlimit limit{64 << 20, 64 << 20};  // less than the process has: the next allocation fails
    ::setrlimit(RLIMIT_AS, &limit);
  }
  if (way == "tensor") {
    std::vector<at::Tensor> tensors;
    while (true) tensors.push_back(at::ones({64 << 20}));
  }
  std::vector<std::unique_ptr<std::vector<char>>> memory;
  while (true) memory.push_back(std::make_unique<std::vector<char>>(16 << 20, 'x'));
}

class Training {
 public:
  Training(const Settings& settings, Group group)
      : settings_(settings),
        group_(std::move(group)),
        fault_(settings.text("fault")),
        way_(settings.text("way")),
        site_(settings.text("site")),
        fault_step_(static_cast<int>(settings.number("step", -1))),
        is_culprit_(settings.number("rank", -1) == group_->rank()) {
    if (settings.number("norm", 1) != 0) {
      model_->push_back(torch::nn::Linear(kWidth, kWidth));
      model_->push_back(SyncBatchNorm(torch::nn::BatchNormOptions(kWidth)));
      model_->push_back(torch::nn::ReLU());
    }
    model_->push_back(torch::nn::Linear(kWidth, kWidth));
    DdpOptions options;
    options.forward_sync_buffers = false;
    options.bucket_cap_mb = 0.01;
    ddp_ = std::make_unique<DistributedDataParallel<torch::nn::Sequential>>(model_, options);
    ddp_->register_comm_hook(0, [this](int, GradBucket& bucket) { return reduce_bucket(bucket); });
  }

  void run() {
    const int steps = static_cast<int>(settings_.number("steps", 20));
    for (step_ = 0; step_ < steps; ++step_) {
      if (is_here("loop") && fault_ == "skipped") {
        tell();
        continue;
      }
      if (is_here("loop") && fault_ == "left") {
        tell();
        return;
      }
      do_step();
    }
  }

  // Ranks have different numbers of steps.
  void run_uneven() {
    const int steps = static_cast<int>(settings_.number("steps", 20)) + 5 * group_->rank();
    Join join = ddp_->join();
    for (step_ = 0; step_ < steps; ++step_) {
      spend_time();
      forward_pass().backward();
    }
    join.finish();
  }

 private:
  void do_step() {
    spend_time();
    enter("forward");
    at::Tensor loss = forward_pass();
    if (leaves_out("rest")) return;  // as a program does that leaves out a batch whose loss is not finite
    if (!leaves_out("backward")) loss.backward();
    if (!leaves_out("loss")) average_loss(loss.detach());
    if (!leaves_out("norm")) sum_norms();
    take_word();
    end_step();
    if (step_ % kEvaluateEvery == kEvaluateEvery - 1) evaluate();
  }

  bool is_here(const std::string& site) const { return is_culprit_ && step_ == fault_step_ && site == site_; }
  bool leaves_out(const std::string& site) {
    if (!is_here(site) || fault_ != "skipped") return false;
    tell();
    return true;
  }
  void tell() const { print("injected " + fault_); }

  // Prints where this rank is. Here the rank does what takes the place of coming to the call, or returns whether the
  // call is to be made in another way.
  bool enter(const std::string& site) {
    print(concat("at ", site, " ", step_));
    if (!is_here(site) || fault_ == "skipped") return false;
    tell();
    if (fault_ == "killed") ::kill(::getpid(), SIGKILL);
    if (fault_ == "stopped") ::raise(SIGSTOP);  // of this thread, which would go on for a moment otherwise
    if (fault_ == "slow") compute(2 * settings_.number("compute"));  // three times what the others compute
    if (fault_ == "blocked") wait_for_a_file(way_, settings_.text("path"));
    if (fault_ == "out_of_memory") run_out_of_memory(way_);
    if (fault_ == "hook_exception") throw_from_hook();
    return fault_.starts_with("other_");
  }

  void throw_from_hook() const {
    if (way_ == "torch") at::ones({2}).add_(at::ones({3}));
    if (way_ == "alloc") throw std::length_error("a bucket of another length");
    throw std::runtime_error("the scale of the gradients is not finite");
  }

  // What a batch costs beside the calls.
  void spend_time() const {
    const int rank = group_->rank();
    double seconds = settings_.number("compute") * (1 + settings_.number("uneven") * rank);
    if (step_ == 0) seconds += settings_.number("first");
    compute(seconds);
    const int every = static_cast<int>(settings_.number("checkpoint_every"));
    if (every > 0 && rank == 0 && step_ % every == every - 1) pause(settings_.number("checkpoint"));
  }

  [[gnu::noinline]] at::Tensor forward_pass() { return (*ddp_)(at::randn({4, kWidth})).square().mean(); }

  [[gnu::noinline]] at::Tensor reduce_bucket(GradBucket& bucket) {
    const bool other = enter(concat("bucket", bucket.index()));
    if (other) {
      call_otherwise(bucket.group(), bucket.buffer());
    } else {
      bucket.group().all_reduce({bucket.buffer()})->wait();
    }
    return bucket.buffer().div_(bucket.divisor());
  }

  [[gnu::noinline]] void average_loss(const at::Tensor& loss) {
    const at::Tensor sum = loss.to(at::kDouble).reshape({1});
    if (enter("loss")) return call_otherwise(*group_, sum);
    group_->all_reduce({sum})->wait();
  }

  [[gnu::noinline]] void sum_norms() {
    const at::Tensor norms = at::ones({48});
    if (enter("norm")) return call_otherwise(*group_, norms);
    group_->all_reduce({norms})->wait();
  }

  [[gnu::noinline]] void take_word() {
    enter("word");
    group_->broadcast({at::ones({4})})->wait();
  }

  [[gnu::noinline]] void end_step() {
    if (enter("end")) return call_otherwise(*group_, at::ones({1}));
    group_->barrier()->wait();
  }

  [[gnu::noinline]] void evaluate() {
    enter("evaluate");
    group_->all_gather_into_tensor(at::empty({3L * group_->size()}), at::ones({3}))->wait();
  }

  // Another collective, another shape or another dtype than the other ranks.
  [[gnu::noinline]] void call_otherwise(ProcessGroup& group, const at::Tensor& tensor) {
    if (fault_ == "other_shape") {
      group.all_reduce({at::ones({tensor.numel() + 7}, tensor.options())})->wait();
    } else if (fault_ == "other_dtype") {
      group.all_reduce({tensor.to(tensor.scalar_type() == at::kDouble ? at::kFloat : at::kDouble)})->wait();
    } else if (way_ == "gather") {
      group.all_gather_into_tensor(at::empty({tensor.numel() * group.size()}, tensor.options()), tensor)->wait();
    } else {
      group.broadcast({tensor.clone()})->wait();
    }
  }

  const Settings& settings_;
  const Group group_;
  const std::string fault_;
  const std::string way_;  // how the fault comes about, where there are several ways
  const std::string site_;
  const int fault_step_;
  const bool is_culprit_;
  torch::nn::Sequential model_;
  std::unique_ptr<DistributedDataParallel<torch::nn::Sequential>> ddp_;
  int step_ = 0;
};

int run(const Settings& settings) {
  at::set_num_threads(1);
  InitOptions options;
  if (const std::string backend = settings.text("backend"); !backend.empty()) options.backend = backend;
  const Group group = init_process_group(options);
  {
    Training training(settings, group);
    if (settings.number("join") != 0) {
      training.run_uneven();
    } else {
      training.run();
    }
    const bool has_left = settings.text("fault") == "left" && settings.number("rank") == group->rank();
    if (has_left && settings.text("way") == "exit") std::_Exit(0);
  }
  destroy_process_group();
  // As a rank that writes its results when the loop is over.
  if (settings.text("fault") == "left" && settings.text("way") == "goes_on") pause(settings.number("after"));
  return 0;
}

}  // namespace
}  // namespace gradwire

int main(int argc, char** argv) {
  const gradwire::Settings settings(argc, argv);
  if (settings.text("catch") == "0") return gradwire::run(settings);
  try {
    return gradwire::run(settings);
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
  }
  std::_Exit(1);
}
