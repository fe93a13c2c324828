// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "examples/char_lm/replica.h"

#include <torch/torch.h>

#include <atomic>
#include <chrono>
#include <utility>

#include "gradwire/ddp/distributed_data_parallel.h"
#include "gradwire/hooks/registry.h"

namespace char_lm {
namespace {

using Clock = std::chrono::steady_clock;

// Added to by lanes, read by the training loop.
struct Meter {
  std::atomic<std::int64_t> nanoseconds{0};
  std::atomic<std::int64_t> bytes{0};

  void add(Clock::duration time, std::int64_t sent) {
    nanoseconds.fetch_add(std::chrono::nanoseconds(time).count(), std::memory_order_relaxed);
    bytes.fetch_add(sent, std::memory_order_relaxed);
  }
};

// Another hook with a stopwatch and a count of bytes. It makes the same promises, so DDP treats it alike.
class MeteredHook final : public gradwire::CommHook {
 public:
  MeteredHook(std::shared_ptr<gradwire::CommHook> hook, std::shared_ptr<Meter> meter)
      : CommHook(hook->traits()), hook_(std::move(hook)), meter_(std::move(meter)) {}

  gradwire::Future run(gradwire::GradBucket& bucket) override {
    const Clock::time_point start = Clock::now();
    // Nobody else uses the group of a lane, so what it counts is this hook's.
    const std::uint64_t before = bucket.group().payload_bytes();
    gradwire::Future future = hook_->run(bucket);
    const auto sent = static_cast<std::int64_t>(bucket.group().payload_bytes() - before);
    // On a lane the future is done already and the callback runs at once.
    future->addCallback(
        [meter = meter_, start, sent](c10::ivalue::Future&) { meter->add(Clock::now() - start, sent); });
    return future;
  }
  gradwire::HookState state_dict() const override { return hook_->state_dict(); }
  void load_state_dict(const gradwire::HookState& state) override { hook_->load_state_dict(state); }

 private:
  std::shared_ptr<gradwire::CommHook> hook_;
  std::shared_ptr<Meter> meter_;
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
  Impl(CharTransformer model, const Options& options, std::shared_ptr<gradwire::ProcessGroup> group)
      : hook_(std::make_shared<MeteredHook>(gradwire::make_hook(options.hook), meter_)),
        ddp_(std::move(model), ddp_options(options, std::move(group))) {
    ddp_.register_comm_hook(hook_);
  }

  torch::Tensor forward(const torch::Tensor& tokens) { return ddp_.forward(tokens); }

  CommunicationTotals communication() const {
    return {static_cast<double>(meter_->nanoseconds.load(std::memory_order_relaxed)) * 1e-9,
            meter_->bytes.load(std::memory_order_relaxed)};
  }

  ReplicaState state() { return {ddp_.core().bucket_order(), hook_->state_dict()}; }

  void restore(const ReplicaState& state, bool with_hook) {
    if (!state.bucket_order.empty()) ddp_.core().set_bucket_order(state.bucket_order);
    if (with_hook) hook_->load_state_dict(state.hook);
  }

 private:
  std::shared_ptr<Meter> meter_ = std::make_shared<Meter>();
  std::shared_ptr<MeteredHook> hook_;
  gradwire::DistributedDataParallel<CharTransformer> ddp_;
};

Replica::Replica(CharTransformer model, const Options& options, std::shared_ptr<gradwire::ProcessGroup> group)
    : impl_(std::make_unique<Impl>(std::move(model), options, std::move(group))) {}

Replica::~Replica() = default;

torch::Tensor Replica::forward(const torch::Tensor& tokens) { return impl_->forward(tokens); }

CommunicationTotals Replica::communication() const { return impl_->communication(); }

ReplicaState Replica::state() const { return impl_->state(); }

void Replica::restore(const ReplicaState& state, bool with_hook) { impl_->restore(state, with_hook); }

}  // namespace char_lm
