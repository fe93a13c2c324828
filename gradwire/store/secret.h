// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The secret of a job, which the server of a TcpStore asks of its clients.
#pragma once

#include <functional>
#include <optional>
#include <string>

namespace gradwire {

// The longest secret, in bytes.
inline constexpr std::size_t kMaxSecretBytes = 4096;

// Returns the secret in the file `path`: all of its bytes, without one line end at the end.
//
// Throws InvalidArgument that names `path` when the file cannot be read, when the secret is empty or longer than
// kMaxSecretBytes, or when other users have permissions on the file. Nobody outside the file's group may have any
// permission; where the file belongs to this process's user, the group may not have any either (ssh asks the same of a
// private key). Create a secret with `openssl rand -hex 32`: whoever records the network's traffic can try weak secrets
// against it. Thread-safe.
std::string read_secret_file(const std::string& path);

// Returns the secret that the environment names: the secret in the file GRADWIRE_SECRET_FILE, else the value of
// GRADWIRE_SECRET, else an empty string, which means no secret. `read` returns the value of an environment variable: it
// is getenv, or a map in tests. Throws as read_secret_file() does. Thread-safe where `read` is.
std::string secret_from_environment(const std::function<std::optional<std::string>(const char* name)>& read);

}  // namespace gradwire
