// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Collectives, messages and compression without torch: gradient descent on raw buffers. Links gradwire::core alone.
//
//   gradwire-run -n 2 collectives_without_torch
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <random>
#include <span>
#include <vector>

#include "gradwire/core.h"

namespace {

constexpr std::size_t kFeatures = 4096;

using Floats = std::vector<float>;

Floats draw(std::mt19937& random, std::size_t count) {
  std::normal_distribution<float> normal;
  Floats numbers(count);
  for (float& number : numbers) number = normal(random);
  return numbers;
}

// The gradient of (w - truth)^2 / 2 with noise: each rank sees it through noise of its own.
double noisy_gradient(const Floats& weights, const Floats& truth, std::mt19937& random, std::span<float> gradient) {
  double loss = 0;
  const Floats noise = draw(random, weights.size());
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const float difference = weights[i] - truth[i];
    loss += 0.5 * difference * difference;
    gradient[i] = difference + 0.1F * noise[i];
  }
  return loss / static_cast<double>(weights.size());
}

// Passes a number around the ring of ranks: point to point, with tags.
int pass_around(gradwire::Channel& channel) {
  const int next = (channel.rank() + 1) % channel.size();
  const int before = (channel.rank() + channel.size() - 1) % channel.size();
  int token = channel.rank();
  int received = -1;
  auto sent = channel.isend(&token, sizeof(token), next, /*tag=*/7);
  channel.irecv(&received, sizeof(received), before, /*tag=*/7)
      ->wait(gradwire::Deadline::after(gradwire::kDefaultTimeout));
  sent->wait(gradwire::Deadline::after(gradwire::kDefaultTimeout));
  return received;
}

}  // namespace

int main() {
  gradwire::Job job;  // rank and size from the launcher; shm on one host, UCX between hosts
  gradwire::Channel& channel = job.channel();
  const int rank = job.rank();

  std::mt19937 same(1);
  const Floats truth = draw(same, kFeatures);
  Floats weights(kFeatures, 0.0F);

  // Memory that the other ranks read where it lies: collectives on it copy nothing.
  const gradwire::Allocation memory = channel.allocate(kFeatures * sizeof(float), {});
  const std::span<float> gradient(reinterpret_cast<float*>(memory.data.get()), kFeatures);

  // Gradients of 8 bits, with a memory of what was lost.
  auto compressor = gradwire::compress::make_compressor("int8:memory=error_feedback");
  gradwire::compress::ChannelTransport transport(channel);
  std::mt19937 own(100 + static_cast<unsigned>(rank));
  std::size_t bytes = 0;
  for (std::uint64_t step = 0; step <= 40; ++step) {
    const double loss = noisy_gradient(weights, truth, own, gradient);
    if (step % 2 == 0) {  // plainly: the sum, then the mean
      channel.all_reduce(gradient.data(), kFeatures, gradwire::DType::f32, gradwire::ReduceOp::avg(), {});
      bytes += gradient.size_bytes();
    } else {  // compressed
      const gradwire::compress::Segment all{"weights", 0, kFeatures};
      bytes += compressor->all_reduce(transport, std::span(&all, 1), {.step = step / 2}, gradient);
    }
    for (std::size_t i = 0; i < kFeatures; ++i) weights[i] -= 0.2F * gradient[i];
    if (rank == 0 && step % 10 == 0) std::printf("step %3d  loss %.5f\n", static_cast<int>(step), loss);
  }
  double norm = 0;
  for (const float weight : weights) norm += static_cast<double>(weight) * weight;
  std::printf("rank %d of %d over %s: the rank before is %d; sent %zu bytes\n", rank, job.size(),
              job.backend_name().c_str(), pass_around(channel), bytes);
  std::printf("rank %d ends with weights of norm %.17g\n", rank, std::sqrt(norm));
  channel.barrier({});
}
