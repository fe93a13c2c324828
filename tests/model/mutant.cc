// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "tests/model/mutant.h"

#include <fstream>

namespace gradwire::model {
namespace {

using Orders = std::vector<std::memory_order>;

// From the next weaker one to none.
Orders weaker(Access access, std::memory_order order) {
  const bool loads = access != Access::store;
  const bool stores = access != Access::load;
  Orders weaker;
  if (order == std::memory_order_seq_cst) {
    if (loads && stores) weaker.push_back(std::memory_order_acq_rel);
    if (loads != stores) weaker.push_back(loads ? std::memory_order_acquire : std::memory_order_release);
  }
  if (order == std::memory_order_acq_rel) {
    weaker.push_back(std::memory_order_acquire);
    weaker.push_back(std::memory_order_release);
  }
  if (order != std::memory_order_relaxed) weaker.push_back(std::memory_order_relaxed);
  return weaker;
}

}  // namespace

std::string name_of(std::memory_order order) {
  switch (order) {
    case std::memory_order_relaxed:
      return "relaxed";
    case std::memory_order_acquire:
    case std::memory_order_consume:
      return "acquire";
    case std::memory_order_release:
      return "release";
    case std::memory_order_acq_rel:
      return "acq_rel";
    case std::memory_order_seq_cst:
      return "seq_cst";
  }
  return "?";
}

std::vector<int> lines_with_accesses(const std::string& path) {
  std::ifstream file(path);
  std::vector<int> lines;
  std::string text;
  for (int line = 1; std::getline(file, text); ++line) {
    const std::size_t comment = text.find("//");
    const std::string code = text.substr(0, comment);
    if (code.find("std::memory_order_") != std::string::npos || code.find(".wake(") != std::string::npos) {
      lines.push_back(line);
    }
  }
  return lines;
}

std::string line_of(const std::string& path, int line) {
  std::ifstream file(path);
  std::string text;
  for (int i = 0; i < line; ++i) std::getline(file, text);
  const std::size_t begin = text.find_first_not_of(' ');
  return begin == std::string::npos ? std::string() : text.substr(begin);
}

std::vector<Mutant> mutants_of(const std::map<int, Mutation::Seen>& seen) {
  std::vector<Mutant> made;
  for (const auto& [line, access] : seen) {
    if (access.access == Access::wake) {
      made.push_back({line, Access::wake, std::memory_order_relaxed});
      continue;
    }
    for (const std::memory_order order : weaker(access.access, access.order)) {
      made.push_back({line, access.access, order});
    }
  }
  return made;
}

}  // namespace gradwire::model
