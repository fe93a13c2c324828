// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The secret that the processes of a job share, so that a store's server lets nobody else in.
#pragma once

#include <functional>
#include <optional>
#include <string>

namespace gradwire {

// The longest secret that is taken, in bytes.
inline constexpr std::size_t kMaxSecretBytes = 4096;

// The secret in a file: all of its bytes but the line end at the end. Throws InvalidArgument, with `path` in it, when
// the file cannot be read, is empty or holds more than kMaxSecretBytes, or when other users may read, write or execute
// the file: its owner's group where the file is this user's (as ssh asks of a private key), everybody in any case. Draw
// a secret with `openssl rand -hex 32`: whoever listens to the network can try weak ones at leisure.
std::string read_secret_file(const std::string& path);

// What the environment says: the secret in the file that GRADWIRE_SECRET_FILE names, else the value of GRADWIRE_SECRET,
// else an empty string, which stands for none. `read` is getenv, or a map in tests. Throws as read_secret_file() does.
std::string secret_from_environment(const std::function<std::optional<std::string>(const char* name)>& read);

}  // namespace gradwire
