// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// How launchers come to the store of a job over several hosts: one of them serves it, and the others find it.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "gradwire/store/tcp_store.h"

namespace gradwire::launch {

// The words around a problem in the sentence that the user reads.
struct Refusal {
  std::string opening;
  std::string advice;
};

struct ServeRefusals {
  Refusal not_served;   // "OPENING: PROBLEMADVICE"
  Refusal unreachable;  // the same: the address is none of this host's
};

// Serves a store as `options` say. While the port is in use, tries again for a few seconds: what a launcher that was
// killed has left behind may serve it until the launcher's ranks have ended. `pause` waits for the given time, or
// throws. Clients without the secret are named on stderr, once an address. Throws LaunchError with the words of
// `refusals`.
std::unique_ptr<TcpStore> serve_store(TcpStoreOptions options, const std::function<void(Milliseconds)>& pause,
                                      const ServeRefusals& refusals);

struct FindRefusals {
  Refusal not_let_in;  // "OPENING: PROBLEMADVICE": the secret, for example
  Refusal not_found;   // "OPENING within TIME (PROBLEM)ADVICE"
};

// Connects to the store that `options` name, and waits until `key` is there, which its launcher sets as it begins.
// Tries for `patience`. `check` is called before each try, and may throw. Throws LaunchError with the words of
// `refusals`.
std::unique_ptr<TcpStore> find_store(TcpStoreOptions options, const std::string& key, Milliseconds patience,
                                     const std::function<void()>& check, const FindRefusals& refusals);

}  // namespace gradwire::launch
