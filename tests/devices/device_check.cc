// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// What scripts/gpu_check.py runs on each rank, on a GPU or on the CPU. Rank 0 prints one line of JSON for each result.
//
//   device_check train DEVICE BACKEND STEPS [HOOK...]    the losses of a small model with each hook (default: all)
//   device_check all_reduce DEVICE BACKEND BYTES         seconds of an all-reduce, and of copies between DEVICE and the
//                                                        pinned memory of the host
//
// DEVICE is cpu or cuda; all ranks share the first GPU.
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "gradwire/gradwire.h"

namespace {

using Json = nlohmann::json;

struct Place {
  at::Device device;
  std::shared_ptr<gradwire::ProcessGroup> group;
};

Place join(const std::string& device, const std::string& backend) {
  gradwire::InitOptions options;
  options.backend = backend;
  const at::Device chosen = device == "cuda" ? at::Device(at::kCUDA, 0) : at::Device(at::kCPU);
  if (backend == "nccl") options.device_id = chosen;
  return {chosen, gradwire::init_process_group(options)};
}

void print(const Place& place, Json line) {
  if (place.group->rank() != 0) return;
  line["world"] = place.group->size();
  std::puts(line.dump().c_str());
  std::fflush(stdout);
}

struct Model : torch::nn::Module {
  Model() {
    register_module("first", first);
    register_module("second", second);
  }
  torch::Tensor forward(const torch::Tensor& x) { return second(torch::tanh(first(x))); }
  torch::nn::Linear first{64, 2048};  // beyond what is staged as a small call
  torch::nn::Linear second{2048, 16};
};

// The losses of rank 0. All random numbers are drawn on the CPU, so that they are the same on every device.
std::vector<double> train(const Place& place, const std::string& hook, int steps) {
  torch::manual_seed(1);
  Model model;
  const torch::Tensor truth = torch::randn({64, 16});
  model.to(place.device);
  gradwire::DistributedDataParallel ddp(model);
  ddp.register_comm_hook(gradwire::make_hook(hook));
  torch::optim::SGD optimizer(ddp.parameters(), 0.05);
  torch::manual_seed(100 + place.group->rank());
  std::vector<double> losses;
  for (int step = 0; step < steps; ++step) {
    const torch::Tensor x = torch::randn({32, 64});
    const torch::Tensor target = torch::tanh(x.matmul(truth) / 8).to(place.device);
    optimizer.zero_grad();
    const torch::Tensor loss = torch::mse_loss(ddp(x.to(place.device)), target);
    loss.backward();
    optimizer.step();
    losses.push_back(loss.item<double>());
  }
  return losses;
}

// All hooks of the registry; PowerSGD from the third step on, where its default is the thousandth.
std::vector<std::string> all_hooks() {
  std::vector<std::string> hooks = gradwire::hook_names();
  for (std::string& hook : hooks) {
    if (hook.find("power_sgd") != std::string::npos) hook += ":start=2,min_rate=0";
  }
  return hooks;
}

void train_all(const Place& place, int steps, std::vector<std::string> hooks) {
  if (hooks.empty()) hooks = all_hooks();
  for (const std::string& hook : hooks) {
    Json line{{"hook", hook}};
    try {
      line["losses"] = train(place, hook, steps);
    } catch (const gradwire::UnsupportedError& refusal) {
      line["refused"] = refusal.what();
    }
    print(place, line);
  }
}

// The best of some runs. A copy to the host waits for what the device still does.
double seconds_of(const torch::Tensor& result, const std::function<void()>& action) {
  constexpr int kRuns = 7;
  double best = 1e9;
  for (int run = 0; run < kRuns; ++run) {
    (void)result.narrow(0, 0, 1).cpu();
    const auto start = std::chrono::steady_clock::now();
    action();
    (void)result.narrow(0, 0, 1).cpu();
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return best;
}

void require_equal(const torch::Tensor& actual, const torch::Tensor& expected) {
  if (!actual.equal(expected)) throw std::runtime_error("the all-reduce gave wrong sums");
}

void all_reduce(const Place& place, std::int64_t bytes) {
  const auto pinned = torch::TensorOptions().pinned_memory(place.device.is_cuda());
  const torch::Tensor numbers = torch::arange(bytes / 4).remainder(1009).to(torch::kFloat);
  const torch::Tensor values = torch::ones({bytes / 4}, torch::TensorOptions(place.device));
  const torch::Tensor host = torch::ones({bytes / 4}, pinned);
  Json line{{"bytes", bytes}};
  line["to_host_s"] = seconds_of(values, [&] { host.copy_(values, /*non_blocking=*/true); });
  line["to_device_s"] = seconds_of(values, [&] { values.copy_(host, /*non_blocking=*/true); });
  values.copy_(numbers + place.group->rank());
  place.group->all_reduce({values})->wait();
  const int size = place.group->size();
  require_equal(values.cpu(), numbers * size + size * (size - 1) / 2);
  line["all_reduce_s"] = seconds_of(values, [&] { place.group->all_reduce({values})->wait(); });
  place.group->barrier()->wait();
  print(place, line);
}

int usage() {
  std::fputs("usage: device_check train DEVICE BACKEND STEPS [HOOK...] | all_reduce DEVICE BACKEND BYTES\n", stderr);
  return 2;
}

}  // namespace

int main(int count, char** arguments) {
  const std::vector<std::string> words(arguments + 1, arguments + count);
  if (words.size() < 4 || (words[0] != "train" && words[0] != "all_reduce")) return usage();
  const Place place = join(words[1], words[2]);
  if (words[0] == "train") {
    train_all(place, std::stoi(words[3]), {words.begin() + 4, words.end()});
  } else {
    all_reduce(place, std::stoll(words[3]));
  }
  gradwire::destroy_process_group();
  return 0;
}
