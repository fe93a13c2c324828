// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// One rank that runs hooks on a bucket.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "bench/group_ranks.h"
#include "bench/hooks_command.h"
#include "gradwire/base/strings.h"
#include "gradwire/ddp/grad_bucket.h"
#include "gradwire/hooks/registry.h"
#include "gradwire/process_group/lane_scope.h"
#include "gradwire/process_group/network_payload.h"

namespace gradwire::bench {
namespace {

constexpr std::int64_t kSide = 1024;

// Matrices of 1024 x 1024, each with a vector, then one smaller matrix and a vector of what is left. hook_worker.py has
// the same.
std::shared_ptr<const BucketLayout> make_layout(std::int64_t numel) {
  auto layout = std::make_shared<BucketLayout>();
  const auto add = [&](at::IntArrayRef sizes) {
    const at::Tensor parameter = at::zeros(sizes);
    if (parameter.numel() == 0) return;
    const std::size_t number = layout->slots.size();
    layout->append(number, parameter, parameter, concat("p", number));
  };
  while (numel - layout->numel >= kSide * kSide + kSide) {
    add({kSide, kSide});
    add({kSide});
  }
  const auto side = static_cast<std::int64_t>(std::sqrt(static_cast<double>(numel - layout->numel)));
  add({side, side});
  add({numel - layout->numel});
  return layout;
}

class HookSubject {
 public:
  explicit HookSubject(std::shared_ptr<ProcessGroup> group)
      : group_(std::move(group)), routes_{{group_, group_->dup()}}, lane_(*routes_.front().duplicate) {}

  void prepare(const Measurement& what) {
    const auto numel = static_cast<std::int64_t>(what.bytes / sizeof(float));
    if (layout_ == nullptr || layout_->numel != numel) {
      layout_ = make_layout(numel);
      buffer_ = group_->allocate(numel, at::kFloat);
      // Longer than the bucket: every step takes another stretch of it, so that gradients of two steps differ, as what
      // memories add up should.
      const auto generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<std::uint64_t>(group_->rank()) + 1);
      normal_ = at::empty({numel + numel / 4 + kSide}).normal_(0, 1, generator);
      hook_name_.clear();
    }
    if (hook_name_ != what.variant) {
      hook_ = make_hook(what.variant);
      hook_name_ = what.variant;
      iteration_ = 0;
    }
  }

  void refill() {
    const std::int64_t offset = 7919 * static_cast<std::int64_t>(iteration_) % (normal_.numel() - buffer_.numel());
    buffer_.copy_(normal_.narrow(0, offset, buffer_.numel()));
  }

  void barrier() { group_->barrier()->wait(); }

  void run() {
    const std::uint64_t before = network_payload_bytes(lane_);
    const LaneScope scope(routes_, {.iteration = iteration_});
    GradBucket bucket(layout_, buffer_, lane_, group_->size(), true, iteration_++);
    const Future future = hook_->run(bucket);
    future->waitAndThrow();
    const at::Tensor result = tensor_of(*future);
    if (result.data_ptr() != buffer_.data_ptr()) buffer_.copy_(result);
    sent_ = network_payload_bytes(lane_) - before;
  }

  std::size_t bytes() const { return sent_; }

 private:
  const std::shared_ptr<ProcessGroup> group_;
  const std::vector<LaneScope::Route> routes_;
  ProcessGroup& lane_;
  std::shared_ptr<const BucketLayout> layout_;
  at::Tensor buffer_;
  at::Tensor normal_;
  std::string hook_name_;
  std::shared_ptr<CommHook> hook_;
  std::uint32_t iteration_ = 0;
  std::size_t sent_ = 0;
};

}  // namespace

void run_hook_worker(const RankOptions& options) { serve_subjects_of_groups<HookSubject>(options); }

}  // namespace gradwire::bench
