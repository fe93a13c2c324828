// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// gradwire's Work as c10d's Work.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "gradwire/process_group/work.h"

namespace gradwire::internal {

// One call of a C10dBackend. Made before the call, so that a profiler sees all of the call; follow() takes the Work
// that the call returned. There are three cases:
//   - The call has ended when it returns (asyncOp false): this object has ended then, too.
//   - The call goes on, and its Work has a future: this object ends with the future. A profiler's event ends first;
//     then futures complete; then waiters go on.
//     A wait is for the Work first, whose errors name the call.
//   - Messages, and a Work without a future: this object ends when a thread that waits or asks finds that the Work has
//     ended.
class WorkForC10d final : public c10d::Work {
 public:
  // `title` is a literal: "gradwire:all_reduce".
  WorkForC10d(int rank, c10d::OpType type, const char* title, const std::vector<at::Tensor>& inputs,
              std::uint64_t sequence);

  void follow(std::shared_ptr<gradwire::Work> work);

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  int sourceRank() const override;
  std::vector<at::Tensor> result() override;
  bool wait(std::chrono::milliseconds timeout) override;
  void blockCurrentStream() override;
  Future getFuture() override;
  std::uint64_t getSequencenumber() const override { return sequence_; }

 private:
  void end(const std::exception_ptr& ours);
  void take_result();
  // The Work that follow() took; null where its call went on and has ended.
  std::shared_ptr<gradwire::Work> followed() const;

  const std::uint64_t sequence_;
  std::shared_ptr<gradwire::Work> work_;  // as followed() says
  std::vector<at::Tensor> result_;        // of a call that went on and has ended
  std::exception_ptr no_result_;          // why such a call has none
  Future future_;                         // of a call that went on
  bool asks_ = false;                     // the third case
  std::once_flag ended_;
};

}  // namespace gradwire::internal
