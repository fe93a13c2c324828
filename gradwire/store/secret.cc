// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/store/secret.h"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>

#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"

namespace gradwire {
namespace {

void require_length(const std::string& secret, const std::string& where) {
  if (secret.empty()) throw InvalidArgument(concat("the secret in ", where, " is empty"));
  if (secret.size() > kMaxSecretBytes) {
    throw InvalidArgument(concat("the secret in ", where, " is longer than ", kMaxSecretBytes, " bytes"));
  }
}

}  // namespace

std::string read_secret_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string secret(kMaxSecretBytes + 3, '\0');
  file.read(secret.data(), static_cast<std::streamsize>(secret.size()));
  if (!file.is_open() || file.bad()) {
    throw InvalidArgument(concat("cannot read the secret in '", path, "': ", std::strerror(errno)));
  }
  secret.resize(static_cast<std::size_t>(file.gcount()));
  if (secret.ends_with('\n')) secret.pop_back();
  if (secret.ends_with('\r')) secret.pop_back();
  require_length(secret, concat("'", path, "'"));
  return secret;
}

std::string secret_from_environment(const std::function<std::optional<std::string>(const char* name)>& read) {
  if (const auto path = read("GRADWIRE_SECRET_FILE")) return read_secret_file(*path);
  std::string secret = read("GRADWIRE_SECRET").value_or("");
  if (!secret.empty()) require_length(secret, "the environment variable GRADWIRE_SECRET");
  return secret;
}

}  // namespace gradwire
