// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// A mutant of code under test: one access with a weaker memory order, or one omitted wake-up. The line identifies the
// access, so the code has at most one access a line.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace gradwire::model {

struct Site {
  const char* file = "";
  int line = 0;
};

enum class Access { load, store, both, wake };

struct Mutant {
  int line = 0;  // 0: no mutant
  Access access = Access::load;
  std::memory_order order = std::memory_order_relaxed;  // instead of the access's own
};

class Mutation {
 public:
  // Records accesses in the header whose path ends in `file`; empty: records nothing.
  explicit Mutation(std::string_view file, Mutant mutant = {}) : file_(file), mutant_(mutant) {}

  std::memory_order order(Site site, Access access, std::memory_order order) {
    if (!is_ours(site)) return order;
    seen_[site.line] = {access, order};
    return site.line == mutant_.line ? mutant_.order : order;
  }
  bool drops_wake(Site site) {
    if (!is_ours(site)) return false;
    seen_[site.line] = {Access::wake, std::memory_order_relaxed};
    return site.line == mutant_.line;
  }

  // The accesses that were executed, by line.
  struct Seen {
    Access access;
    std::memory_order order;
  };
  const std::map<int, Seen>& seen() const noexcept { return seen_; }

 private:
  bool is_ours(Site site) noexcept {
    if (site.file != last_file_) {
      last_file_ = site.file;
      last_is_ours_ = !file_.empty() && std::string_view(site.file).ends_with(file_);
    }
    return last_is_ours_;
  }

  std::string file_;
  Mutant mutant_;
  std::map<int, Seen> seen_;
  const char* last_file_ = nullptr;
  bool last_is_ours_ = false;
};

std::string name_of(std::memory_order order);

// Returns the lines of a source with a memory order or a wake-up. A scenario must execute each of these lines.
std::vector<int> lines_with_accesses(const std::string& path);
std::string line_of(const std::string& path, int line);  // without the spaces around it

// Returns every mutant of the executed accesses: each access with the next weaker order or orders and with relaxed
// order, and each wake-up omitted.
std::vector<Mutant> mutants_of(const std::map<int, Mutation::Seen>& seen);

}  // namespace gradwire::model
