// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "launch/rank_environment.h"

#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <string_view>

#include "launch/free_port.h"
#include "launch/launch_error.h"

namespace gradwire::launch {
namespace {

class EnvironmentBuilder {
 public:
  explicit EnvironmentBuilder(const char* const* inherited) {
    for (; *inherited != nullptr; ++inherited) entries_.emplace_back(*inherited);
  }
  bool has(std::string_view name) const {
    return std::any_of(entries_.begin(), entries_.end(), [&](const auto& entry) { return names(entry, name); });
  }
  void remove(std::string_view name) {
    std::erase_if(entries_, [&](const auto& entry) { return names(entry, name); });
  }
  void set(std::string_view name, std::string_view value) {
    remove(name);
    entries_.push_back(std::string(name).append("=").append(value));
  }
  void set(std::string_view name, int value) { set(name, std::to_string(value)); }
  std::vector<std::string> take() { return std::move(entries_); }

 private:
  static bool names(std::string_view entry, std::string_view name) {
    return entry.size() > name.size() && entry.starts_with(name) && entry[name.size()] == '=';
  }
  std::vector<std::string> entries_;
};

}  // namespace

std::vector<std::string> rank_environment(const JobVariables& job, int local_rank, const char* const* inherited) {
  EnvironmentBuilder environment(inherited);
  environment.set("RANK", job.first_rank + local_rank);
  environment.set("LOCAL_RANK", local_rank);
  environment.set("WORLD_SIZE", job.world);
  environment.set("LOCAL_WORLD_SIZE", job.ranks);
  environment.set("GROUP_RANK", job.node);
  environment.set("GROUP_WORLD_SIZE", job.nodes);
  environment.set("MASTER_ADDR", job.master_address);
  environment.set("MASTER_PORT", job.master_port);
  environment.set("GRADWIRE_RENDEZVOUS", job.rendezvous);
  environment.set("GRADWIRE_JOB_ID", job.job_id);
  // A launcher that a rank starts inherits that of the rank, as it inherits those of an elastic job.
  environment.remove("GRADWIRE_RUN_ID");
  if (!job.run_id.empty()) environment.set("GRADWIRE_RUN_ID", job.run_id);
  environment.set("GRADWIRE_ATTEMPT", job.attempt);
  // A launcher that a rank of an elastic job starts inherits those of that job.
  environment.remove("GRADWIRE_ELASTIC");
  environment.remove("GRADWIRE_ELASTIC_HOST");
  if (!job.elastic.empty()) environment.set("GRADWIRE_ELASTIC", job.elastic);
  if (!job.elastic_host.empty()) environment.set("GRADWIRE_ELASTIC_HOST", job.elastic_host);
  if (!job.secret_file.empty()) environment.set("GRADWIRE_SECRET_FILE", job.secret_file);
  const auto local = static_cast<std::size_t>(local_rank);
  if (local < job.flight_recorders.size() && !job.flight_recorders[local].empty())
    environment.set("GRADWIRE_FLIGHT_RECORDER", job.flight_recorders[local]);
  if (!job.record_folder.empty()) environment.set("GRADWIRE_RECORD", job.record_folder);
  if (job.terminal) environment.set("GRADWIRE_TERMINAL", 1);
  if (!environment.has("OMP_NUM_THREADS")) environment.set("OMP_NUM_THREADS", job.threads);
  for (const auto& [name, value] : job.extra) environment.set(name, value);
  return environment.take();
}

std::vector<std::string> inherited_environment() {
  std::vector<std::string> environment;
  for (char** entry = environ; *entry != nullptr; ++entry) environment.emplace_back(*entry);
  return environment;
}

std::string own_host_name() {
  char name[256] = {};
  return ::gethostname(name, sizeof(name) - 1) == 0 && name[0] != '\0' ? name : "unknown host";
}

std::string random_job_id() {
  std::uint64_t value = 0;
  if (::getrandom(&value, sizeof(value), 0) != sizeof(value)) throw_errno("cannot draw a random job id");
  char text[17];
  std::snprintf(text, sizeof(text), "%016llx", static_cast<unsigned long long>(value));
  return text;
}

std::string job_id_or_random(const std::string& given) { return given.empty() ? random_job_id() : given; }

std::uint16_t master_port_or_free(std::uint16_t given) {
  return given != 0 ? given : find_free_port(PortScope::loopback);
}

}  // namespace gradwire::launch
