// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "examples/char_lm/replica.h"

#include <torch/types.h>

#include <utility>

#include "gradwire/ddp/distributed_data_parallel.h"
#include "gradwire/hooks/registry.h"
#include "gradwire/process_group/network_payload.h"

namespace char_lm {
namespace {

// Another hook with a stopwatch and a count of bytes. It makes the same promises, so DDP treats it alike.
class MeteredHook final : public gradwire::CommHook {
 public:
  MeteredHook(std::shared_ptr<gradwire::CommHook> hook, std::shared_ptr<StepRecorder> recorder)
      : CommHook(hook->traits()), hook_(std::move(hook)), recorder_(std::move(recorder)) {}

  gradwire::Future run(gradwire::GradBucket& bucket) override {
    const std::size_t index = bucket.index();
    const StepRecorder::HookCall call(*recorder_, index, static_cast<std::int64_t>(bucket.buffer().nbytes()));
    // Nobody else uses the group of a lane, so what it counts is this hook's.
    const std::uint64_t before = gradwire::network_payload_bytes(bucket.group());
    gradwire::Future future = hook_->run(bucket);
    const auto sent = static_cast<std::int64_t>(gradwire::network_payload_bytes(bucket.group()) - before);
    // On a lane the future is done already and the callback runs at once.
    future->addCallback(
        [recorder = recorder_, index, sent](c10::ivalue::Future&) { recorder->hook_done(index, sent); });
    return future;
  }
  void end_iteration() override { hook_->end_iteration(); }
  gradwire::HookState state_dict() const override { return hook_->state_dict(); }
  void load_state_dict(const gradwire::HookState& state) override { hook_->load_state_dict(state); }

 private:
  std::shared_ptr<gradwire::CommHook> hook_;
  std::shared_ptr<StepRecorder> recorder_;
};

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
  Impl(CharTransformer model, const Options& options, std::shared_ptr<gradwire::ProcessGroup> group,
       std::shared_ptr<StepRecorder> recorder)
      : ddp_(std::move(model), ddp_options(options, std::move(group))) {
    ddp_.register_comm_hook(std::make_shared<MeteredHook>(gradwire::make_hook(options.hook), std::move(recorder)));
  }

  torch::Tensor forward(const torch::Tensor& tokens) { return ddp_.forward(tokens); }

  gradwire::DdpCore& core() { return ddp_.core(); }

 private:
  gradwire::DistributedDataParallel<CharTransformer> ddp_;
};

Replica::Replica(CharTransformer model, const Options& options, std::shared_ptr<gradwire::ProcessGroup> group,
                 std::shared_ptr<StepRecorder> recorder)
    : impl_(std::make_unique<Impl>(std::move(model), options, std::move(group), std::move(recorder))) {}

Replica::~Replica() = default;

torch::Tensor Replica::forward(const torch::Tensor& tokens) { return impl_->forward(tokens); }

gradwire::DdpCore& Replica::core() { return impl_->core(); }

}  // namespace char_lm
