// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// How errors of collectives leave a backward pass that another language called. The autograd bindings of that language
// turn every exception that is not the language's own into an error without a type. So differentiable functions and
// DistributedDataParallel remember a translation, which the language's bindings give.
#pragma once

#include <exception>

namespace gradwire {

// Throws an exception of the language for `error`, or returns where there is none; then `error` itself is thrown.
// Called on the thread of the pass that failed.
using TranslateError = void (*)(const std::exception_ptr& error);

// That of this thread's innermost BackwardErrors; null outside of all.
TranslateError backward_errors() noexcept;

// For the bindings of a language: as long as an object lives, the differentiable functions that this thread calls, and
// the DistributedDataParallel that it makes, remember `translate`. Objects of one thread end in reverse order.
class BackwardErrors {
 public:
  // A null `translate` leaves errors as they are.
  explicit BackwardErrors(TranslateError translate) noexcept;
  ~BackwardErrors();
  BackwardErrors(const BackwardErrors&) = delete;
  BackwardErrors& operator=(const BackwardErrors&) = delete;

 private:
  TranslateError before_;
};

// Runs `body`, the backward pass of what remembered `translate`, which may be null.
template <class Body>
auto run_backward(TranslateError translate, const Body& body) -> decltype(body()) {
  const BackwardErrors of_further_passes(translate);
  try {
    return body();
  } catch (...) {
    if (translate != nullptr) translate(std::current_exception());
    throw;
  }
}

}  // namespace gradwire
