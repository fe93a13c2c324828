// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// A group as a user would write one, for tests above the line. Ranks are threads. The group supports broadcast,
// all_gather and a summing all_reduce only.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "gradwire/process_group/process_group.h"

namespace gradwire::testing {

// The memory in which the ranks of one group meet. Every collective is one meeting.
class Meeting {
 public:
  explicit Meeting(int size) : slots_(static_cast<std::size_t>(size)) {}

  // Passes `mine` to the other ranks, and returns the values of all ranks, in rank order.
  std::vector<at::Tensor> meet(int rank, const at::Tensor& mine) {
    std::unique_lock lock(mutex_);
    require_alive();
    slots_[static_cast<std::size_t>(rank)] = mine.defined() ? mine.detach().clone() : at::Tensor();
    const std::uint64_t generation = generation_;
    if (++arrived_ == slots_.size()) {
      arrived_ = 0;
      ++generation_;
      met_ = slots_;
      changed_.notify_all();
    } else if (!changed_.wait_for(lock, std::chrono::seconds(60),
                                  [&] { return generation_ != generation || !reason_.empty(); })) {
      reason_ = "a rank did not come within a minute";
    }
    if (generation_ == generation) require_alive();
    return met_;
  }

  void abort(const std::string& reason) {
    const std::lock_guard lock(mutex_);
    if (reason_.empty()) reason_ = reason;
    changed_.notify_all();
  }

 private:
  void require_alive() const {
    if (!reason_.empty()) throw PeerError(concat("the local group was aborted: ", reason_), {});
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<at::Tensor> slots_;
  std::vector<at::Tensor> met_;
  std::size_t arrived_ = 0;
  std::uint64_t generation_ = 0;
  std::string reason_;
};

// Counts the uses of a group. The counters are atomic, because several threads may wait for one Work.
struct Calls {
  std::atomic<int> collectives{0};
  std::atomic<int> waits{0};
  std::atomic<int> futures{0};
};

// A Work as a user would write one. It has completed at construction, and counts waits and futures.
class CountingWork final : public Work {
 public:
  CountingWork(std::vector<at::Tensor> outputs, Calls& calls) : outputs_(std::move(outputs)), calls_(calls) {}
  bool wait(Milliseconds) override {
    ++calls_.waits;
    return true;
  }
  Future future() override {
    ++calls_.futures;
    auto future = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
    future->markCompleted(c10::IValue(outputs_));
    return future;
  }

 private:
  std::vector<at::Tensor> outputs_;
  Calls& calls_;
};

class LocalGroup final : public ProcessGroup {
 public:
  LocalGroup(std::shared_ptr<Meeting> meeting, int rank, int size)
      : ProcessGroup(rank, size), meeting_(std::move(meeting)) {}
  void abort(const std::string& reason) override { meeting_->abort(reason); }
  Calls calls;

 protected:
  std::shared_ptr<Work> do_broadcast(Tensors& tensors, const BroadcastOptions& options) override {
    const auto all = meet(tensors[0]);
    tensors[0].copy_(all[static_cast<std::size_t>(options.root)]);
    return work(tensors);
  }
  std::shared_ptr<Work> do_all_gather(std::vector<Tensors>& outputs, Tensors& inputs,
                                      const AllGatherOptions&) override {
    const auto all = meet(inputs[0]);
    for (std::size_t i = 0; i < all.size(); ++i) outputs[0][i].copy_(all[i]);
    return work(outputs[0]);
  }
  std::shared_ptr<Work> do_all_reduce(Tensors& tensors, const AllReduceOptions& options) override {
    if (options.op != ReduceOp::sum()) throw UnsupportedError("this group only sums");
    const auto all = meet(tensors[0]);
    at::Tensor sum = all[0].clone();
    for (std::size_t i = 1; i < all.size(); ++i) sum.add_(all[i]);
    tensors[0].copy_(sum);
    return work(tensors);
  }

 private:
  std::vector<at::Tensor> meet(const at::Tensor& mine) {
    ++calls.collectives;
    return meeting_->meet(rank(), mine);
  }
  std::shared_ptr<Work> work(const Tensors& outputs) { return std::make_shared<CountingWork>(outputs, calls); }

  std::shared_ptr<Meeting> meeting_;
};

// Runs `body` on `size` ranks over a LocalGroup. When all ranks have ended, throws the exception of the lowest rank
// that threw one.
inline void run_local_ranks(int size, const std::function<void(int rank, std::shared_ptr<LocalGroup> group)>& body) {
  auto meeting = std::make_shared<Meeting>(size);
  std::vector<std::exception_ptr> errors(static_cast<std::size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        body(rank, std::make_shared<LocalGroup>(meeting, rank, size));
      } catch (const std::exception& error) {
        errors[static_cast<std::size_t>(rank)] = std::current_exception();
        meeting->abort(concat("rank ", rank, ": ", error.what()));
      }
    });
  }
  for (auto& thread : threads) thread.join();
  for (const auto& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

}  // namespace gradwire::testing
