// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// A Work of a group inside another group, whose error is put into the words of the outer one.
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <vector>

#include "gradwire/base/mutex.h"
#include "gradwire/process_group/work.h"

namespace gradwire::internal {

// Thread-safe.
class TranslatedWork final : public Work {
 public:
  using Translate = std::function<std::exception_ptr(const std::exception_ptr& error)>;

  // Ends as `inner` does, but with translate(error) where `inner` ends with an error. `translate` may be called by any
  // thread, several times.
  TranslatedWork(std::shared_ptr<Work> inner, Translate translate);
  ~TranslatedWork() override;

  bool wait(Milliseconds timeout = kNoTimeout) override;
  Future future() override;
  bool is_completed() override { return inner_->is_completed(); }
  bool is_success() override { return inner_->is_success(); }
  std::exception_ptr exception() override;
  std::vector<at::Tensor> result() override;
  void block_current_stream() override;
  int source_rank() const override { return inner_->source_rank(); }

 private:
  // Calls `call`, and throws the translation of what it throws.
  template <class Call>
  auto translated(const Call& call);

  const std::shared_ptr<Work> inner_;
  const Translate translate_;
  Mutex mutex_;
  Future future_ GRADWIRE_GUARDED_BY(mutex_);
};

}  // namespace gradwire::internal
