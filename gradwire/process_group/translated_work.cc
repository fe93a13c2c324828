// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "gradwire/process_group/translated_work_internal.h"

namespace gradwire::internal {

TranslatedWork::TranslatedWork(std::shared_ptr<Work> inner, Translate translate)
    : inner_(std::move(inner)), translate_(std::move(translate)) {}

TranslatedWork::~TranslatedWork() = default;

template <class Call>
auto TranslatedWork::translated(const Call& call) {
  try {
    return call();
  } catch (...) {
    std::rethrow_exception(translate_(std::current_exception()));
  }
}

bool TranslatedWork::wait(Milliseconds timeout) {
  return translated([&] { return inner_->wait(timeout); });
}

Future TranslatedWork::future() {
  MutexLock lock(mutex_);
  if (future_ == nullptr) {
    const Future inner = inner_->future();
    future_ = inner->then(
        [translate = translate_](c10::ivalue::Future& ended) {
          if (ended.hasError()) std::rethrow_exception(translate(ended.exception_ptr()));
          return ended.value();
        },
        inner->elementType());
  }
  return future_;
}

std::exception_ptr TranslatedWork::exception() {
  const std::exception_ptr error = inner_->exception();
  return error == nullptr ? error : translate_(error);
}

std::vector<at::Tensor> TranslatedWork::result() {
  return translated([&] { return inner_->result(); });
}

void TranslatedWork::block_current_stream() {
  translated([&] { inner_->block_current_stream(); });
}

}  // namespace gradwire::internal
