// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Standalone Asio as this room uses it.
#pragma once

#define ASIO_STANDALONE
#define ASIO_NO_DEPRECATED

#include <asio.hpp>

// For classes that hold Asio's objects; they cannot be seen further than those.
#define GRADWIRE_HIDDEN __attribute__((visibility("hidden")))
