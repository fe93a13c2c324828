// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// A training loop without a model, in which one rank does something wrong in one step:
//
//   fault_program FAULT RANK CALL CALLS
//
// Call 0, 3, 6, ... averages gradients, call 1, 4, 7, ... sums the loss, and call 2, 5, 8, ... takes a word of rank 0.
// FAULT_BACKEND names the backend.
#include <ATen/Functions.h>
#include <signal.h>
#include <sys/resource.h>
#include <torch/nn/modules/linear.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "gradwire/ddp/distributed_data_parallel.h"
#include "gradwire/process_group/init.h"

namespace gradwire {
namespace {

using Group = std::shared_ptr<ProcessGroup>;

[[gnu::noinline]] void reduce_gradients(const Group& group, std::int64_t count, at::ScalarType dtype) {
  group->all_reduce({at::ones({count}, dtype)})->wait();
}

[[gnu::noinline]] void sum_loss(const Group& group) { group->all_reduce({at::ones({1})})->wait(); }

[[gnu::noinline]] void take_word(const Group& group, int root) {
  BroadcastOptions options;
  options.root = root;
  group->broadcast({at::ones({4})}, options)->wait();
}

[[gnu::noinline]] void gather_instead(const Group& group) {
  group->all_gather_into_tensor(at::empty({1024 * group->size()}), at::ones({1024}))->wait();
}

void make_call(const Group& group, int call) {
  if (call % 3 == 0) {
    reduce_gradients(group, 1024, at::kFloat);
  } else if (call % 3 == 1) {
    sum_loss(group);
  } else {
    take_word(group, 0);
  }
}

[[noreturn]] void compute_for_ever() {
  volatile double value = 1;
  while (true) value = value * 1.0000001;
}

void wait_for_a_thread_that_computes() { std::thread(compute_for_ever).join(); }

void read_what_never_comes() {
  int ends[2];
  char byte = 0;
  if (::pipe(ends) == 0) [[maybe_unused]]
    const auto count = ::read(ends[0], &byte, 1);
}

void run_out_of_memory() {
  rlimit limit{};
  ::getrlimit(RLIMIT_AS, &limit);
  limit.rlim_cur = 64 << 20;
  ::setrlimit(RLIMIT_AS, &limit);
  std::vector<std::unique_ptr<std::vector<char>>> memory;
  while (true) memory.push_back(std::make_unique<std::vector<char>>(1 << 26));
}

// A step of DDP with a hook that throws on one rank.
void train_with_a_hook(const Group& group, int rank, int last) {
  torch::nn::Linear layer(8, 8);
  DistributedDataParallel ddp(layer);
  int calls = 0;
  ddp.register_comm_hook(0, [&](int, GradBucket& bucket) -> at::Tensor {
    if (++calls == last && group->rank() == rank) throw std::runtime_error("the scale of the gradients is not finite");
    bucket.group().all_reduce({bucket.buffer()})->wait();
    return bucket.buffer().div_(bucket.divisor());
  });
  for (int i = 0; i < last + 5; ++i) ddp(at::ones({2, 8})).sum().backward();
}

// Rank RANK waits for the others in a duplicate of the group, and they wait for it in the group.
void wait_in_another_group(const Group& group, const Group& other, bool at_fault) {
  if (at_fault) {
    other->barrier()->wait();
  } else {
    sum_loss(group);
  }
}

// What the rank at fault does before the call, or in its place.
const std::map<std::string, std::function<void(const Group&)>> kFaults = {
    {"killed", [](const Group&) { ::kill(::getpid(), SIGKILL); }},
    {"crashed", [](const Group&) { ::raise(SIGSEGV); }},
    {"out_of_memory", [](const Group&) { run_out_of_memory(); }},
    {"failed", [](const Group&) { throw std::runtime_error("the file of samples is broken"); }},
    {"stopped", [](const Group&) { ::raise(SIGSTOP); }},
    {"slow", [](const Group&) { compute_for_ever(); }},
    {"slow_thread", [](const Group&) { wait_for_a_thread_that_computes(); }},
    {"blocked", [](const Group&) { read_what_never_comes(); }},
    {"other_collective", gather_instead},
    {"other_shape", [](const Group& group) { reduce_gradients(group, 1000, at::kFloat); }},
    {"other_dtype", [](const Group& group) { reduce_gradients(group, 1024, at::kDouble); }},
    {"skipped", sum_loss},
    {"other_root", [](const Group& group) { take_word(group, 1); }},
    {"left", [](const Group&) { std::_Exit(0); }},
};

// A receive that waits for the whole job is no standstill.
void run_with_an_early_receive(const Group& group, int seconds) {
  at::Tensor word = at::zeros({1});
  const int size = group->size();
  const auto received = group->recv({word}, (group->rank() + size - 1) % size);
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
  at::Tensor more = at::ones({1});
  for (int call = 0; more.item<float>() > 0; ++call) {
    make_call(group, call);
    more.fill_(std::chrono::steady_clock::now() < end ? 1 : 0);
    group->broadcast({more})->wait();
  }
  group->send({word}, (group->rank() + 1) % size)->wait();
  received->wait();
}

int run(const std::string& fault, int rank, int at, int calls) {
  InitOptions options;
  if (const char* backend = std::getenv("FAULT_BACKEND")) options.backend = backend;
  const Group group = init_process_group(options);
  const Group other = group->dup();
  if (fault == "hook_exception") {
    train_with_a_hook(group, rank, at);
    return 0;
  }
  if (fault == "early_receive") {
    run_with_an_early_receive(group, calls);
    return 0;
  }
  for (int i = 0; i < calls; ++i) {
    const bool at_fault = i == at && group->rank() == rank;
    if (i == at && fault == "deadlock") wait_in_another_group(group, other, at_fault);
    const auto found = kFaults.find(fault);
    if (at_fault && found != kFaults.end()) found->second(group);
    make_call(group, i);
    if (i == at) std::cout << "calling" << std::endl;
  }
  group->barrier()->wait();
  return 0;
}

}  // namespace
}  // namespace gradwire

int main(int argc, char** argv) {
  if (argc != 5) return 2;
  try {
    const int code = gradwire::run(argv[1], std::atoi(argv[2]), std::atoi(argv[3]), std::atoi(argv[4]));
    gradwire::destroy_process_group();
    return code;
  } catch (const std::bad_alloc&) {
    std::cerr << "std::bad_alloc\n";
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
  }
  std::_Exit(1);
}
