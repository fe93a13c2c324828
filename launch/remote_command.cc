// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "launch/remote_command.h"

#include <sstream>
#include <string_view>

#include "gradwire/base/strings.h"

namespace gradwire::launch {
namespace {

constexpr std::string_view kHost = "{host}";
constexpr std::string_view kCommand = "{command}";

std::string replace(std::string text, std::string_view what, const std::string& with) {
  for (auto at = text.find(what); at != std::string::npos; at = text.find(what, at + with.size())) {
    text.replace(at, what.size(), with);
  }
  return text;
}

}  // namespace

std::string quote_for_shell(const std::string& word) { return concat("'", replace(word, "'", "'\\''"), "'"); }

std::vector<std::string> remote_command(const std::string& shell, const std::string& host, const std::string& folder,
                                        const std::vector<std::string>& command) {
  std::vector<std::string> quoted;
  for (const auto& word : command) quoted.push_back(quote_for_shell(word));
  const std::string line = concat("cd ", quote_for_shell(folder), " && exec ", join(quoted, " "));
  std::istringstream words(shell.find(kCommand) == std::string::npos ? concat(shell, " {host} {command}") : shell);
  std::vector<std::string> result;
  // The host first: the line may hold anything.
  for (std::string word; words >> word;) result.push_back(replace(replace(word, kHost, host), kCommand, line));
  return result;
}

}  // namespace gradwire::launch
