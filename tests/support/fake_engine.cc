// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "tests/support/fake_engine.h"

#include <ATen/Functions.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <mutex>
#include <optional>
#include <set>
#include <utility>

#include "tests/support/fake_watcher.h"

namespace gradwire::testing {
namespace {

using fake::on_host;
using fake::watcher;

// A call of the engine's: its stream follows the caller's, then who waits follows it.
class FakeWork final : public c10d::Work {
 public:
  explicit FakeWork(c10::Event end) : end_(std::move(end)) {}
  bool isCompleted() override { return true; }
  bool isSuccess() const override { return true; }
  bool wait(std::chrono::milliseconds) override {
    end_.block(current_stream(end_.device()));
    return true;
  }

 private:
  const c10::Event end_;
};

class FakeEngine final : public c10d::Backend {
 public:
  FakeEngine(std::shared_ptr<Meeting> meeting, int rank, int size, std::shared_ptr<FakeFaults> faults)
      : c10d::Backend(rank, size), meeting_(std::move(meeting)), faults_(std::move(faults)) {}
  ~FakeEngine() override { let_go(); }
  const std::string getBackendName() const override { return "nccl"; }
  void abort() override {
    meeting_->abort("the engine was aborted");
    let_go();
  }
  c10d::ErrorType getError() override { return failed_ ? c10d::ErrorType::COMM_ERROR : c10d::ErrorType::SUCCESS; }

  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>& tensors,
                                           const c10d::AllreduceOptions& options) override {
    return call(tensors.front(), tensors.front(), options.asyncOp, [](const at::Tensor& mine, const auto& all) {
      mine.copy_(all.front());
      for (std::size_t rank = 1; rank < all.size(); ++rank) mine.add_(all[rank]);
    });
  }
  c10::intrusive_ptr<c10d::Work> broadcast(std::vector<at::Tensor>& tensors,
                                           const c10d::BroadcastOptions& options) override {
    const auto root = static_cast<std::size_t>(options.rootRank);
    return call(tensors.front(), tensors.front(), options.asyncOp,
                [root](const at::Tensor& mine, const auto& all) { mine.copy_(all[root]); });
  }
  c10::intrusive_ptr<c10d::Work> _allgather_base(at::Tensor& output, at::Tensor& input,
                                                 const c10d::AllgatherOptions& options) override {
    return call(input, output, options.asyncOp,
                [](const at::Tensor& whole, const auto& all) { whole.copy_(at::cat(all)); });
  }
  c10::intrusive_ptr<c10d::Work> alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<std::int64_t>&,
                                               std::vector<std::int64_t>&,
                                               const c10d::AllToAllOptions& options) override {
    const std::int64_t part = input.numel() / getSize();
    return call(input, output, options.asyncOp, [&, this](const at::Tensor& mine, const auto& all) {
      for (std::size_t rank = 0; rank < all.size(); ++rank)
        mine.narrow(0, static_cast<std::int64_t>(rank) * part, part).copy_(all[rank].narrow(0, getRank() * part, part));
    });
  }

 private:
  template <class Combine>
  c10::intrusive_ptr<c10d::Work> call(const at::Tensor& from, const at::Tensor& to, bool async,
                                      const Combine& combine) {
    const c10::Stream caller = current_stream(from.device());
    if (!own_) own_ = new_stream(from.device());
    const c10::Stream stream = async ? *own_ : caller;
    if (async) {
      c10::Event begin(kFakeDevice);
      begin.record(caller);
      begin.block(stream);
    }
    for (const at::Tensor& tensor : {from, to})
      c10::impl::VirtualGuardImpl(kFakeDevice).recordDataPtrOnStream(tensor.storage().data_ptr(), stream);
    access_on(stream, from, false);
    access_on(stream, to, true);
    if (faults_ && faults_->hang) {
      hang(stream);
    } else if (faults_ && faults_->failing_rank >= 0) {
      failed_ = failed_ || faults_->failing_rank == getRank();
    } else {
      combine(on_host(to), meeting_->meet(getRank(), on_host(from)));
    }
    if (!async) return {};
    c10::Event end(kFakeDevice);
    end.record(stream);
    return c10::make_intrusive<FakeWork>(std::move(end));
  }

  void hang(const c10::Stream& stream) {
    const std::lock_guard lock(mutex_);
    watcher().hang(stream);
    hanging_.insert(fake::name_of(stream));
  }
  void let_go() {
    const std::lock_guard lock(mutex_);
    for (const fake::StreamName& stream : std::exchange(hanging_, {})) watcher().let_go(stream);
  }

  const std::shared_ptr<Meeting> meeting_;
  const std::shared_ptr<FakeFaults> faults_;
  std::atomic<bool> failed_{false};
  std::optional<c10::Stream> own_;
  std::mutex mutex_;
  std::set<fake::StreamName> hanging_;
};

}  // namespace

c10::intrusive_ptr<c10d::Backend> make_fake_engine(std::shared_ptr<Meeting> meeting, int rank, int size,
                                                   std::shared_ptr<FakeFaults> faults) {
  return c10::make_intrusive<FakeEngine>(std::move(meeting), rank, size, std::move(faults));
}

}  // namespace gradwire::testing
