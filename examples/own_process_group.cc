// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// A process group of one's own: ranks communicate through a store, as slowly as that is, and DistributedDataParallel
// trains over it. Three methods are enough; each waits for the other ranks' tensors and returns a Work that has ended.
//
//   gradwire-run -n 2 own_process_group
//
// gradwire/testing/conformance_suite.h tests such a group (docs/testing.md).
#include <torch/torch.h>

#include <cstdio>
#include <memory>
#include <span>
#include <string>

#include "gradwire/gradwire.h"

namespace {

using gradwire::Tensors;
using gradwire::Work;

class StoreGroup final : public gradwire::ProcessGroup {
 public:
  StoreGroup(std::shared_ptr<gradwire::Store> store, int rank, int size)
      : ProcessGroup(rank, size), store_(std::move(store)) {}

 protected:
  std::string get_backend_name() const override { return "store"; }

  std::shared_ptr<Work> do_broadcast(Tensors& tensors, const gradwire::BroadcastOptions& options) override {
    const auto all = exchange(tensors[0]);
    tensors[0].copy_(all[static_cast<std::size_t>(options.root)]);
    return gradwire::completed_work(tensors);
  }
  std::shared_ptr<Work> do_all_gather(std::vector<Tensors>& outputs, Tensors& inputs,
                                      const gradwire::AllGatherOptions&) override {
    const auto all = exchange(inputs[0]);
    for (std::size_t rank = 0; rank < all.size(); ++rank) outputs[0][rank].copy_(all[rank]);
    return gradwire::completed_work(outputs[0]);
  }
  std::shared_ptr<Work> do_all_reduce(Tensors& tensors, const gradwire::AllReduceOptions& options) override {
    if (options.op != gradwire::ReduceOp::sum()) throw gradwire::UnsupportedError("the group 'store' only sums");
    const auto all = exchange(tensors[0]);
    tensors[0].zero_();
    for (const auto& one : all) tensors[0].add_(one);  // in rank order: the same bits on all ranks
    return gradwire::completed_work(tensors);
  }

 private:
  // Every rank's tensor, by rank. Each call has keys of its own, and removes its keys of two calls ago: a rank that
  // makes this call has seen all ranks make the one before, so nobody reads them any more.
  Tensors exchange(const torch::Tensor& mine) {
    const auto key = [&](std::uint64_t call, int rank) { return std::to_string(call) + "/" + std::to_string(rank); };
    const auto flat = mine.detach().contiguous();
    store_->set(key(calls_, rank()), std::string(static_cast<const char*>(flat.const_data_ptr()), flat.nbytes()));
    Tensors all;
    for (int each = 0; each < size(); ++each) {
      std::string bytes = store_->get(key(calls_, each));  // waits for that rank
      all.push_back(torch::from_blob(bytes.data(), flat.sizes(), flat.options()).clone());
    }
    if (calls_ >= 2) store_->delete_key(key(calls_ - 2, rank()));
    ++calls_;
    return all;
  }

  const std::shared_ptr<gradwire::Store> store_;
  std::uint64_t calls_ = 0;  // DDP without duplicates of the group calls from one thread at a time
};

void train(const std::shared_ptr<gradwire::ProcessGroup>& group) {
  torch::manual_seed(1);
  torch::nn::Sequential net(torch::nn::Linear(8, 32), torch::nn::Tanh(), torch::nn::Linear(32, 1));
  gradwire::DdpOptions options;
  options.process_group = group;
  gradwire::DistributedDataParallel ddp(net, options);
  torch::optim::SGD optimizer(ddp.parameters(), torch::optim::SGDOptions(0.02));
  torch::manual_seed(100 + group->rank());
  for (int step = 0; step <= 100; ++step) {
    const auto x = torch::randn({32, 8});
    optimizer.zero_grad();
    const auto loss = torch::mse_loss(ddp(x), x.sum(1, true));
    loss.backward();
    optimizer.step();
    if (group->rank() == 0 && step % 25 == 0) std::printf("step %3d  loss %.4f\n", step, loss.item<double>());
  }
  const auto all = torch::nn::utils::parameters_to_vector(net->parameters());
  std::printf("rank %d ends over '%s' with parameters of norm %.17g\n", group->rank(), group->name().c_str(),
              all.to(torch::kDouble).norm().item<double>());
}

}  // namespace

int main() {
  gradwire::Job job;  // rank, size and a store that all ranks see, from the launcher
  train(std::make_shared<StoreGroup>(job.store(), job.rank(), job.size()));
  job.channel().barrier({});  // the store may be another rank's: nobody leaves while others still read
}
