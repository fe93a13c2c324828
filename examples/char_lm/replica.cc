// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "examples/char_lm/replica.h"

#include <torch/types.h>

#include <utility>

#include "gradwire/ddp/distributed_data_parallel.h"
#include "gradwire/hooks/registry.h"

namespace char_lm {
namespace {

gradwire::DdpOptions ddp_options(const Options& options, std::shared_ptr<gradwire::ProcessGroup> group) {
  gradwire::DdpOptions result;
  result.process_group = std::move(group);
  result.gradient_as_bucket_view = options.gradient_as_bucket_view;
  result.bucket_cap_mb = options.bucket_cap_mb;
  result.lanes = options.lanes.value_or(-1);
  return result;
}

}  // namespace

class Replica::Impl {
 public:
  Impl(CharTransformer model, const Options& options, std::shared_ptr<gradwire::ProcessGroup> group)
      : ddp_(std::move(model), ddp_options(options, std::move(group))) {
    ddp_.register_comm_hook(gradwire::make_hook(options.hook));
  }

  torch::Tensor forward(const torch::Tensor& tokens) { return ddp_.forward(tokens); }

  gradwire::DdpCore& core() { return ddp_.core(); }

 private:
  gradwire::DistributedDataParallel<CharTransformer> ddp_;
};

Replica::Replica(CharTransformer model, const Options& options, std::shared_ptr<gradwire::ProcessGroup> group)
    : impl_(std::make_unique<Impl>(std::move(model), options, std::move(group))) {}

Replica::~Replica() = default;

torch::Tensor Replica::forward(const torch::Tensor& tokens) { return impl_->forward(tokens); }

gradwire::DdpCore& Replica::core() { return impl_->core(); }

}  // namespace char_lm
