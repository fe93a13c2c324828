// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "launch/serve_store.h"

#include "gradwire/base/error.h"

namespace gradwire::launch {
namespace {

constexpr Milliseconds kTryTime{4000};
constexpr Milliseconds kTryAgain{100};

}  // namespace

std::unique_ptr<TcpStore> serve_store(const TcpStoreOptions& options, const std::function<void(Milliseconds)>& pause) {
  const Deadline patience = Deadline::after(kTryTime);
  for (;;) {
    try {
      return std::make_unique<TcpStore>(options);
    } catch (const StoreError&) {
      if (patience.expired()) throw;
    }
    pause(kTryAgain);
  }
}

}  // namespace gradwire::launch
