// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// What a TcpStore's server asks of the machine: a port and descriptors.
#pragma once

#include "gradwire/store/asio_internal.h"
#include "gradwire/store/tcp_store_server_internal.h"

namespace gradwire::store_internal {

// A socket that listens where `options` say, closed in programs that this process starts. Throws StoreError when the
// port is in use or may not be bound, InvalidArgument when the address is no numeric address.
asio::ip::tcp::acceptor listen(asio::io_context& loop, const TcpStoreServerOptions& options);

// `options` with limits that the descriptors of this process allow, with room for its other files and for connections
// that have not said hello yet.
TcpStoreServerOptions within_descriptors(TcpStoreServerOptions options);

}  // namespace gradwire::store_internal
