// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Trains a small model with hooks over ranks that are threads, on numbers from files, and writes the parameters of
// every rank: the half of the parity test that runs gradwire. compare_hooks.py runs the other half and writes the
// files.
//
// Reads cases from stdin, a line each:
//
//   --hook SPEC --world N --steps N --batch N --widths 8,16,4 [--bias] [--cap MIB] [--lanes N] [--rate R]
//   --problem FILE --result FILE
//
// and answers each with a line, "ok" or "failed: <why>".
//
// The model is a chain of linear layers with tanh between them; the loss is the mean square of what it gives minus a
// target; plain SGD. Both files are float32 in the machine's byte order. Problem: for each layer its weight (out x in)
// and, with --bias, its bias; then for each step and each rank the batch of inputs and of targets. Result: for each
// rank all parameters in the same order.
#include <ATen/Functions.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <exception>
#include <fstream>
#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "gradwire/ddp/distributed_data_parallel.h"
#include "gradwire/hooks/registry.h"
#include "gradwire/process_group/init.h"
#include "gradwire/store/hash_store.h"

namespace {

struct Options {
  std::string hook;
  int world = 2;
  int steps = 30;
  int batch = 4;
  std::vector<std::int64_t> widths;
  bool bias = false;
  double cap = 25;
  int lanes = 1;
  double rate = 0.1;
  std::string problem;
  std::string result;
};

struct ChainImpl : torch::nn::Module {
  explicit ChainImpl(const Options& options) {
    for (std::size_t i = 0; i + 1 < options.widths.size(); ++i) {
      torch::nn::LinearOptions layer(options.widths[i], options.widths[i + 1]);
      layers.push_back(register_module(gradwire::concat("layer", i), torch::nn::Linear(layer.bias(options.bias))));
    }
  }
  at::Tensor forward(at::Tensor x) {
    for (std::size_t i = 0; i < layers.size(); ++i) x = layers[i](i == 0 ? x : torch::tanh(x));
    return x;
  }
  std::vector<torch::nn::Linear> layers;
};
TORCH_MODULE(Chain);

std::vector<float> read_floats(const std::string& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) throw gradwire::InvalidArgument(gradwire::concat("cannot read '", path, "'"));
  std::vector<float> values(static_cast<std::size_t>(file.tellg()) / sizeof(float));
  file.seekg(0);
  file.read(reinterpret_cast<char*>(values.data()), static_cast<std::streamsize>(values.size() * sizeof(float)));
  return values;
}

// The problem file, from the front. Copyable: each rank reads its own way through.
class Numbers {
 public:
  explicit Numbers(const std::vector<float>& values) : values_(values) {}
  at::Tensor take(at::IntArrayRef sizes) {
    at::Tensor tensor = torch::empty(sizes);
    const auto count = static_cast<std::size_t>(tensor.numel());
    if (count > values_.size() - at_) throw gradwire::InvalidArgument("the problem file is too short");
    std::copy_n(values_.data() + at_, count, tensor.data_ptr<float>());
    at_ += count;
    return tensor;
  }

 private:
  const std::vector<float>& values_;
  std::size_t at_ = 0;
};

std::vector<float> train(const Options& options, const std::vector<float>& problem, int rank,
                         const std::shared_ptr<gradwire::ProcessGroup>& group) {
  Numbers numbers(problem);
  Chain net(options);
  {
    const torch::NoGradGuard no_grad;
    for (auto& parameter : net->parameters()) parameter.copy_(numbers.take(parameter.sizes()));
  }
  gradwire::DdpOptions with;
  with.process_group = group;
  with.bucket_cap_mb = options.cap;
  with.lanes = options.lanes;
  gradwire::DistributedDataParallel ddp(net, with);
  ddp.register_comm_hook(gradwire::make_hook(options.hook, group));
  torch::optim::SGD optimizer(ddp.parameters(), options.rate);
  for (int step = 0; step < options.steps; ++step) {
    for (int of = 0; of < options.world; ++of) {
      const at::Tensor x = numbers.take({options.batch, options.widths.front()});
      const at::Tensor target = numbers.take({options.batch, options.widths.back()});
      if (of != rank) continue;
      optimizer.zero_grad();
      (ddp(x) - target).pow(2).mean().backward();
    }
    optimizer.step();
  }
  std::vector<float> flat;
  for (const auto& parameter : net->parameters()) {
    const at::Tensor values = parameter.detach().contiguous();
    flat.insert(flat.end(), values.data_ptr<float>(), values.data_ptr<float>() + values.numel());
  }
  return flat;
}

void run(const Options& options) {
  at::set_num_threads(1);
  (void)gradwire::make_hook(options.hook);  // an unknown name fails before any rank starts
  const std::vector<float> problem = read_floats(options.problem);
  const auto store = std::make_shared<gradwire::HashStore>();
  std::vector<std::vector<float>> results(static_cast<std::size_t>(options.world));
  std::vector<std::exception_ptr> errors(results.size());
  std::vector<std::thread> threads;
  for (int rank = 0; rank < options.world; ++rank) {
    threads.emplace_back([&, rank] {
      const auto at = static_cast<std::size_t>(rank);
      try {
        const auto group = gradwire::make_process_group("threads", store, rank, options.world);
        results[at] = train(options, problem, rank, group);
      } catch (const std::exception&) {
        errors[at] = std::current_exception();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  for (const auto& error : errors) {
    if (error) std::rethrow_exception(error);
  }
  std::ofstream file(options.result, std::ios::binary);
  for (const auto& values : results)
    file.write(reinterpret_cast<const char*>(values.data()),
               static_cast<std::streamsize>(values.size() * sizeof(float)));
  if (!file.flush()) throw gradwire::InvalidArgument(gradwire::concat("cannot write '", options.result, "'"));
}

Options parse(const std::string& line) {
  Options options;
  CLI::App app{"Trains a small model with one hook on given numbers"};
  app.add_option("--hook", options.hook, "the hook, as in make_hook()")->required();
  app.add_option("--world", options.world, "ranks")->check(CLI::Range(1, 64));
  app.add_option("--steps", options.steps, "training steps");
  app.add_option("--batch", options.batch, "rows of one rank's batch");
  app.add_option("--widths", options.widths, "widths of the layers, from input to output")->delimiter(',')->required();
  app.add_flag("--bias", options.bias, "layers have a bias");
  app.add_option("--cap", options.cap, "cap of the buckets in MiB");
  app.add_option("--lanes", options.lanes, "lanes of DDP");
  app.add_option("--rate", options.rate, "learning rate");
  app.add_option("--problem", options.problem, "file to read")->required();
  app.add_option("--result", options.result, "file to write")->required();
  app.parse(line);
  return options;
}

std::string answer_to(const std::string& line) {
  try {
    run(parse(line));
    return "ok";
  } catch (const std::exception& error) {
    std::string why = error.what();
    std::replace(why.begin(), why.end(), '\n', ' ');
    return "failed: " + why;
  }
}

}  // namespace

int main() {
  for (std::string line; std::getline(std::cin, line);) std::cout << answer_to(line) << std::endl;
}
