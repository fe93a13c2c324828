// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/process_group/ordered_calls_internal.h"

#include <ATen/ThreadLocalState.h>

#include <exception>
#include <utility>

#include "gradwire/base/log.h"
#include "gradwire/base/strings.h"

namespace gradwire::internal {
namespace {

std::exception_ptr error_of(const OrderedCalls::Body& body) noexcept {
  try {
    body();
    return nullptr;
  } catch (...) {
    return std::current_exception();
  }
}

// Completes `future`; what its callbacks throw must not end the worker.
void complete(const Future& future, const Outputs& outputs, std::exception_ptr error,
              const std::string& what) noexcept {
  try {
    if (error) {
      future->setError(error);
    } else {
      future->markCompleted(outputs.value());
    }
  } catch (const std::exception& problem) {
    log::error(concat(what, ": a callback of its future threw: ", problem.what()));
  }
}

}  // namespace

OrderedCalls::OrderedCalls(std::string thread_name)
    : under_way_(std::make_shared<std::atomic<int>>(0)), executor_(std::move(thread_name)) {}

std::shared_ptr<Work> OrderedCalls::run(Outputs outputs, const Body& body) {
  std::exception_ptr error;
  if (!executor_.run([&] { error = error_of(body); })) return nullptr;
  return error ? failed_work(error) : completed_work(std::move(outputs));
}

std::shared_ptr<Work> OrderedCalls::post(std::string what, Outputs outputs, Body body, std::shared_ptr<void> owner) {
  Future future = c10::make_intrusive<c10::ivalue::Future>(outputs.type());
  ++*under_way_;
  const bool posted = executor_.post([what = std::move(what), outputs = std::move(outputs), body = std::move(body),
                                      future, under_way = under_way_, state = at::ThreadLocalState()]() mutable {
    const at::ThreadLocalStateGuard as_the_caller(state);
    const std::exception_ptr error = error_of(body);
    body = nullptr;
    // Before waiters go on: one of them may let the group go, which must not find this call under way.
    --*under_way;
    complete(future, outputs, error, what);
  });
  if (!posted) {
    --*under_way_;
    return nullptr;
  }
  return work_from_future(std::move(future), std::move(owner));
}

bool OrderedCalls::in_turn(const Body& body) {
  std::exception_ptr error;
  if (!executor_.run([&] { error = error_of(body); })) return false;
  if (error) std::rethrow_exception(error);
  return true;
}

}  // namespace gradwire::internal
