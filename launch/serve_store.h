// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Starts the store of a job over several hosts.
#pragma once

#include <functional>
#include <memory>

#include "gradwire/store/tcp_store.h"

namespace gradwire::launch {

// Serves a store as `options` say. While the port is in use, tries again for a few seconds: what a launcher that was
// killed has left behind may serve it until the launcher's ranks have ended. `pause` waits for the given time, or
// throws. Throws what TcpStore::TcpStore() throws.
std::unique_ptr<TcpStore> serve_store(const TcpStoreOptions& options, const std::function<void(Milliseconds)>& pause);

}  // namespace gradwire::launch
