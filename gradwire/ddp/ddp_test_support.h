// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Ranks, models and comparisons for the tests of this room and of the hooks.
#pragma once

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "gradwire/ddp/distributed_data_parallel.h"
#include "gradwire/process_group/init.h"
#include "gradwire/store/hash_store.h"
#include "tests/support/local_group.h"

namespace gradwire::testing {

// Over what a test runs: a user's group without dup(), or one of our backends with some number of lanes; with or
// without bucket views.
struct Setup {
  std::string group;  // "local" or the name of a backend
  int lanes = -1;
  bool view = false;
};

inline std::string name_of_setup(const ::testing::TestParamInfo<Setup>& info) {
  return concat(info.param.group, "_lanes",
                info.param.lanes < 0 ? std::string("auto") : std::to_string(info.param.lanes),
                info.param.view ? "_view" : "_copy");
}

inline std::vector<Setup> all_setups() {
  std::vector<Setup> setups;
  for (const bool view : {false, true}) {
    setups.push_back({"local", -1, view});
    for (const int lanes : {0, 1, 3}) setups.push_back({"threads", lanes, view});
  }
  return setups;
}

// Runs `body` as `size` ranks, each a thread with one compute thread; throws what the lowest rank threw, after all have
// ended.
inline void run_ranks(const Setup& setup, int size,
                      const std::function<void(int, std::shared_ptr<ProcessGroup>)>& body) {
  if (setup.group == "local") {
    run_local_ranks(size, body);
    return;
  }
  auto store = std::make_shared<HashStore>();
  std::vector<std::exception_ptr> errors(static_cast<std::size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        auto group = make_process_group(setup.group, store, rank, size, std::chrono::seconds(60));
        try {
          body(rank, group);
        } catch (const std::exception& error) {
          group->abort(concat("rank ", rank, ": ", error.what()));
          throw;
        }
      } catch (const std::exception&) {
        errors[static_cast<std::size_t>(rank)] = std::current_exception();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  for (const auto& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

inline DdpOptions options_for(const Setup& setup, std::shared_ptr<ProcessGroup> group) {
  DdpOptions options;
  options.process_group = std::move(group);
  options.lanes = setup.lanes;
  options.gradient_as_bucket_view = setup.view;
  return options;
}

// MKL looks at the processor in the first call of its vector functions, and chooses its code. Where two ranks, as
// threads, do their first calls at once, one of them may get other code, whose last bits differ. So one thread does it.
inline const at::Tensor kFirstVectorFunction = at::tanh(at::ones({32}));

// Fills parameters and buffers with numbers that depend on `seed` alone: ranks as threads share torch's generator.
inline void fill(torch::nn::Module& module, int seed) {
  torch::NoGradGuard no_grad;
  auto generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<std::uint64_t>(seed));
  for (auto& parameter : module.parameters()) parameter.uniform_(-0.5, 0.5, generator);
}

inline at::Tensor random_tensor(at::IntArrayRef sizes, int seed) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<std::uint64_t>(seed));
  return at::rand(sizes, generator).sub_(0.5);
}

struct MlpImpl : torch::nn::Module {
  explicit MlpImpl(int layers = 3, int width = 8, int seed = 1) {
    for (int i = 0; i < layers; ++i)
      linears.push_back(register_module(concat("layer", i), torch::nn::Linear(width, width)));
    fill(*this, seed);
  }
  at::Tensor forward(at::Tensor x) {
    for (auto& linear : linears) x = torch::tanh(linear(x));
    return x;
  }
  std::vector<torch::nn::Linear> linears;
};
TORCH_MODULE(Mlp);

inline std::vector<at::Tensor> gradients_of(const torch::nn::Module& module) {
  std::vector<at::Tensor> out;
  for (const auto& parameter : module.parameters())
    out.push_back(parameter.grad().defined() ? parameter.grad().clone() : at::Tensor());
  return out;
}

inline void expect_close(const std::vector<at::Tensor>& actual, const std::vector<at::Tensor>& expected,
                         double atol = 1e-6) {
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < actual.size(); ++i) {
    ASSERT_EQ(actual[i].defined(), expected[i].defined()) << "tensor " << i;
    if (!actual[i].defined()) continue;
    EXPECT_TRUE(at::allclose(actual[i], expected[i], 1e-5, atol))
        << "tensor " << i << " differs by at most " << (actual[i] - expected[i]).abs().max();
  }
}

// The text of what `action` throws; empty when it throws nothing.
template <class Action>
std::string error_of(Action&& action) {
  try {
    action();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

}  // namespace gradwire::testing
