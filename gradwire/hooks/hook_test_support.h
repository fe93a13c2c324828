// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// For the tests of hooks: a hook on a bucket of given numbers, without DDP; a module whose gradients are known.
#pragma once

#include <ATen/Functions.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <memory>
#include <string>
#include <vector>

#include "gradwire/ddp/comm_hook.h"
#include "gradwire/ddp/ddp_test_support.h"
#include "gradwire/ddp/grad_bucket.h"

namespace gradwire::testing {

using MakeHook = std::function<std::shared_ptr<CommHook>(const std::shared_ptr<ProcessGroup>& group)>;

// A bucket of one parameter, "p", that holds `values`.
inline GradBucket bucket_of(const at::Tensor& values, ProcessGroup& group, std::uint32_t iteration = 0,
                            int divisor = -1) {
  auto layout = std::make_shared<BucketLayout>();
  layout->dtype = values.scalar_type();
  layout->append(0, values.reshape({-1}), at::zeros_like(values), "p");
  return GradBucket(layout, values.clone(), group, divisor < 0 ? group.size() : divisor, true, iteration);
}

// What each rank's hook makes of each rank's values; ranks are threads over `setup`'s group.
inline std::vector<at::Tensor> results_of(const std::string& group, const MakeHook& make,
                                          const std::vector<at::Tensor>& values, int divisor = -1) {
  std::vector<at::Tensor> results(values.size());
  run_ranks({group}, static_cast<int>(values.size()), [&](int rank, const std::shared_ptr<ProcessGroup>& over) {
    const auto at = static_cast<std::size_t>(rank);
    GradBucket bucket = bucket_of(values[at], *over, 0, divisor);
    const Future future = make(nullptr)->run(bucket);
    future->waitAndThrow();
    results[at] = tensor_of(*future).clone();
  });
  return results;
}

// Parameters of every shape, layout and type that a hook may meet. Their gradients are what weights() says.
struct ZooImpl : torch::nn::Module {
  ZooImpl() {
    const auto add = [&](const at::Tensor& tensor) { register_parameter(concat("p", parameters_.size()), tensor); };
    add(random_tensor({7, 5}, 1).t());  // dense, not contiguous
    add(random_tensor({4, 3, 2, 2}, 2).contiguous(at::MemoryFormat::ChannelsLast));
    add(random_tensor({10}, 3).to(at::kDouble));
    add(random_tensor({6, 2}, 4).to(at::kHalf));
    add(random_tensor({9}, 5).to(at::kBFloat16));
    add(random_tensor({}, 6));
    add(random_tensor({4, 6}, 7).slice(1, 0, 6, 2));  // not dense
    add(random_tensor({700}, 8));                     // more than one row of 512
    add(random_tensor({0, 3}, 9));
    add(random_tensor({1, 8, 1}, 10));
    add(random_tensor({512}, 11));
    add(random_tensor({3, 3}, 12).to(at::kDouble).t());
  }
  at::Tensor forward(int rank, int step) {
    at::Tensor loss = at::zeros({}, at::kDouble);
    const auto factors = weights(rank, step);
    const auto all = parameters();
    for (std::size_t i = 0; i < all.size(); ++i) loss = loss + (all[i].to(at::kDouble) * factors[i]).sum();
    return loss;
  }
  // Within +-0.5; the gradients of forward(), in float64.
  std::vector<at::Tensor> weights(int rank, int step) const {
    std::vector<at::Tensor> out;
    const auto all = parameters();
    for (std::size_t i = 0; i < all.size(); ++i)
      out.push_back(random_tensor(all[i].sizes(), 1000 * rank + 100 * step + static_cast<int>(i)).to(at::kDouble));
    return out;
  }
  std::vector<at::Tensor> average(int world, int step) const {
    auto sum = weights(0, step);
    for (int rank = 1; rank < world; ++rank) {
      const auto more = weights(rank, step);
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] = sum[i] + more[i];
    }
    for (auto& one : sum) one = one / world;
    return sum;
  }
};
TORCH_MODULE(Zoo);

// A hook with what is to be expected of it.
struct HookCase {
  std::string name;
  MakeHook make;
  double tolerance;         // of an average of numbers within +-0.5, in buckets of any type
  bool all_to_all = false;  // what the group must have, beside all_gather and all_reduce
};

inline bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  return a.sizes() == b.sizes() && a.scalar_type() == b.scalar_type() && a.equal(b);
}

// Trains a Zoo of small buckets for some steps in this rank and returns the gradients of the last one.
inline std::vector<at::Tensor> zoo_gradients(int rank, const std::shared_ptr<ProcessGroup>& group, const Setup& setup,
                                             const MakeHook& make, int steps = 4) {
  Zoo zoo;
  auto options = options_for(setup, group);
  options.bucket_cap_mb = 1e-6;  // a bucket a parameter, from the second step on
  DistributedDataParallel ddp(zoo, options);
  ddp.register_comm_hook(make(group));
  for (int step = 0; step < steps; ++step) {
    ddp.zero_grad();
    ddp(rank, step).backward();
  }
  return gradients_of(*zoo);
}

inline void expect_zoo_average(const std::vector<at::Tensor>& gradients, int world, double tolerance, int steps = 4) {
  const auto expected = Zoo()->average(world, steps - 1);
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_TRUE(at::allclose(gradients[i].to(at::kDouble), expected[i], 0, tolerance))
        << "parameter " << i << " is off by " << (gradients[i].to(at::kDouble) - expected[i]).abs().max();
  }
}

}  // namespace gradwire::testing
