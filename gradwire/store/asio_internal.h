// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Standalone Asio as this room uses it.
#pragma once

#define ASIO_STANDALONE
#define ASIO_NO_DEPRECATED

#include <fcntl.h>

// Asio asks macros of the standard library whether there is std::aligned_alloc(). Where no header of that library came
// before, Asio takes another allocator, and one source would free what another has allocated in another way.
#include <cstddef>

#include <asio.hpp>
#include <system_error>

// For classes that hold Asio's objects. Their symbols cannot be more visible than those of Asio.
#define GRADWIRE_HIDDEN __attribute__((visibility("hidden")))

namespace gradwire::store_internal {

// Asio opens its sockets without O_CLOEXEC: a program that this process starts would hold them open.
template <class Socket>
void close_on_exec(Socket& socket) {
  static_cast<void>(::fcntl(socket.native_handle(), F_SETFD, FD_CLOEXEC));
}

// Whether the machine, not the network, refused: a later try meets the same limit.
inline bool is_refusal_of_machine(const asio::error_code& error) {
  return error == std::errc::too_many_files_open || error == std::errc::too_many_files_open_in_system ||
         error == std::errc::no_buffer_space || error == std::errc::not_enough_memory;
}

}  // namespace gradwire::store_internal
