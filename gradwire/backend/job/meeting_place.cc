// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/backend/job/meeting_place_internal.h"

#include <charconv>
#include <utility>

#include "gradwire/backend/backend.h"
#include "gradwire/base/error.h"
#include "gradwire/base/log.h"
#include "gradwire/base/strings.h"
#include "gradwire/store/file_store.h"
#include "gradwire/store/hash_store.h"
#include "gradwire/store/prefix_store.h"
#include "gradwire/store/secret.h"
#include "gradwire/store/tcp_store.h"

namespace gradwire::internal {
namespace {

// A method taken apart: "tcp://host:29500?rank=0&world_size=2".
struct Method {
  std::string scheme;
  std::string place;
  int rank = -1;
  int world_size = -1;
  bool hosted = false;  // the launcher serves the store, not rank 0
  std::string prefix;   // the ranks' part of that store
};

int number_in(const MeetingOptions& options, const std::string& method, const std::string& text) {
  int number = 0;
  const char* end = text.data() + text.size();
  const auto [rest, problem] = std::from_chars(text.data(), end, number);
  if (problem != std::errc() || rest != end) {
    throw InvalidArgument(concat(options.caller, ": '", text, "' in the method '", method, "' is no number"));
  }
  return number;
}

void require_known(const MeetingOptions& options) {
  const std::string& method = options.method;
  for (const char* scheme : {"env://", "file://", "tcp://"}) {
    if (method.starts_with(scheme)) return;
  }
  throw InvalidArgument(
      concat(options.caller, ": unknown method '", method, "'; known are env://, file:///path and tcp://host:port"));
}

// `method` has a "://".
Method parse(const MeetingOptions& options, const std::string& method) {
  Method parsed;
  parsed.scheme = method.substr(0, method.find("://"));
  std::string rest = method.substr(parsed.scheme.size() + 3);
  const std::size_t query = rest.find('?');
  parsed.place = rest.substr(0, query);
  while (query != std::string::npos) {
    rest = rest.substr(rest.find_first_of("?&") + 1);
    const std::size_t end = rest.find('&');
    const std::string item = rest.substr(0, end);
    const std::size_t equals = item.find('=');
    const std::string name = item.substr(0, equals);
    const std::string value = equals == std::string::npos ? "" : item.substr(equals + 1);
    if (name == "rank") {
      parsed.rank = number_in(options, method, value);
    } else if (name == "world_size") {
      parsed.world_size = number_in(options, method, value);
    } else if (name == "hosted") {
      parsed.hosted = number_in(options, method, value) != 0;
    } else if (name == "prefix") {
      parsed.prefix = value;
    } else if (name != "use_libuv") {  // PyTorch's, for a choice of servers
      throw InvalidArgument(concat(options.caller, ": unknown '", name, "' in the method '", method,
                                   "'; known are rank, world_size, hosted and prefix"));
    }
    if (end == std::string::npos) break;
    rest = rest.substr(end);
  }
  return parsed;
}

void require_ranks(const MeetingOptions& options, const MeetingPlace& place, const std::string& rank_source,
                   const std::string& size_source) {
  if (place.world_size == -1)
    throw InvalidArgument(concat(options.caller, ": the world size is missing: ", size_source));
  if (place.rank == -1) throw InvalidArgument(concat(options.caller, ": the rank is missing: ", rank_source));
  if (place.world_size < 1 || place.world_size > kMaxWorldSize) {
    throw InvalidArgument(
        concat(options.caller, ": a world of ", place.world_size, " ranks; 1 to ", kMaxWorldSize, " are possible"));
  }
  if (place.rank < 0 || place.rank >= place.world_size) {
    throw InvalidArgument(concat(options.caller, ": rank ", place.rank, " in a world of ", place.world_size,
                                 " ranks; ranks are 0 to ", place.world_size - 1));
  }
}

void meet_in_file(MeetingPlace& place, const std::string& path, const MeetingOptions& options) {
  if (path.empty() || path.front() != '/') {
    throw InvalidArgument(
        concat(options.caller, ": the file '", path, "' is no absolute path; write file:///path/to/file"));
  }
  place.store = std::make_shared<FileStore>(path, place.world_size, options.timeout);
}

struct Server {
  std::string host;
  int port = 0;
  bool hosted = false;
  std::string prefix;
};

void meet_at_server(MeetingPlace& place, Server server, const ReadVariable& read, Milliseconds timeout) {
  std::string& host = server.host;
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  TcpStoreOptions options;
  options.host = std::move(host);
  options.port = static_cast<std::uint16_t>(server.port);
  options.is_server = place.rank == 0 && !server.hosted;
  options.secret = secret_from_environment(read);
  options.world_size = place.world_size;
  options.multi_tenant = true;       // with what else of this process meets at that address
  options.wait_for_workers = false;  // the membership counts the ranks, and says which are missing
  options.timeout = timeout;
  place.may_reconnect = place.rank != 0 && !server.hosted;
  const auto refusals = std::make_shared<Refusals>();
  if (options.is_server) {
    options.on_refusal = [refusals](const std::string& sentence) { refusals->add(sentence); };
    place.refusals = refusals;
  }
  place.store = std::make_shared<TcpStore>(options);
  if (!server.prefix.empty()) place.store = std::make_shared<PrefixStore>(server.prefix, place.store);
}

void meet_at_address(MeetingPlace& place, const std::string& method, const Method& parsed, const ReadVariable& read,
                     const MeetingOptions& options) {
  const std::string& address = parsed.place;
  const std::size_t colon = address.rfind(':');
  if (colon == std::string::npos || colon == 0) {
    throw InvalidArgument(concat(options.caller, ": the method '", method, "' names no port; write tcp://host:port"));
  }
  const int port = number_in(options, method, address.substr(colon + 1));
  if (port < 1 || port > 65535)
    throw InvalidArgument(
        concat(options.caller, ": port ", port, " in the method '", method, "'; ports are 1 to 65535"));
  meet_at_server(place, {address.substr(0, colon), port, parsed.hosted, parsed.prefix}, read, options.timeout);
}

void meet_as_launched(MeetingPlace& place, const JobEnvironment& job, const ReadVariable& read,
                      const MeetingOptions& options) {
  if (!job.rendezvous.empty()) {
    if (job.rendezvous.find("://") == std::string::npos) return meet_in_file(place, job.rendezvous, options);
    const Method method = parse(options, job.rendezvous);
    if (method.scheme == "file") return meet_in_file(place, method.place, options);
    if (method.scheme == "tcp") return meet_at_address(place, job.rendezvous, method, read, options);
    throw InvalidArgument(concat(options.caller, ": GRADWIRE_RENDEZVOUS is '", job.rendezvous,
                                 "'; it must be a path, file:///path or tcp://host:port"));
  }
  const bool one_host = !job.local_world_size || *job.local_world_size == place.world_size;
  if (!job.job_key.empty() && one_host) {
    place.store = open_private_file(job.job_key, read, place.private_file, options.caller, options.timeout);
    return;
  }
  if (!job.master_address.empty() && job.master_port)
    return meet_at_server(place, {job.master_address, *job.master_port, false, ""}, read, options.timeout);
  if (place.world_size == 1) {  // nobody to meet
    place.store = std::make_shared<HashStore>();
    return;
  }
  if (!one_host) {
    throw InvalidArgument(
        concat(options.caller, ": ", job.launcher, " started ", place.world_size, " ranks on several hosts",
               job.launcher == "torchrun" ? ", and its own store at MASTER_PORT is not for us"
                                          : ", and MASTER_ADDR and MASTER_PORT are not both set",
               "; several hosts need a method tcp://host:port whose host is rank 0's, in the program or in "
               "GRADWIRE_RENDEZVOUS"));
  }
  throw InvalidArgument(concat(options.caller, ": ", job.master_address.empty() ? "MASTER_ADDR" : "MASTER_PORT",
                               " is not set, so the ranks have nowhere to meet; set it, start the program with "
                               "gradwire-run, or give a method (file:///path, tcp://host:port) or a store"));
}

}  // namespace

void Refusals::add(const std::string& sentence) {
  MutexLock lock(mutex_);
  sentences_.push_back(sentence);
}

std::string Refusals::text() const {
  MutexLock lock(mutex_);
  if (sentences_.empty()) return "";
  const std::size_t others = sentences_.size() - 1;
  return concat("; meanwhile ", sentences_.front(),
                others == 0 ? "" : concat(", and so were clients at ", others, " other addresses"),
                "; give every rank the same GRADWIRE_SECRET or GRADWIRE_SECRET_FILE");
}

MeetingPlace find_meeting_place(const MeetingOptions& options, const ReadVariable& read) {
  MeetingPlace place;
  place.rank = options.rank;
  place.world_size = options.world_size;
  if (options.store != nullptr) {
    require_ranks(options, place, concat("give ", options.options_name, "::rank with a store"),
                  concat("give ", options.options_name, "::world_size with a store"));
    place.store = options.store;
    return place;
  }
  require_known(options);
  const Method method = parse(options, options.method);
  if (place.rank == -1) place.rank = method.rank;
  if (place.world_size == -1) place.world_size = method.world_size;
  const bool by_environment = method.scheme == "env";
  // A launcher that has nothing to say is not asked: its variables may be those of another job.
  const bool is_told = place.rank != -1 && place.world_size != -1;
  const JobEnvironment job = is_told && !by_environment ? JobEnvironment() : read_job_environment(read);
  if (place.rank == -1) place.rank = job.rank.value_or(-1);
  if (place.world_size == -1) place.world_size = job.world_size.value_or(-1);
  if (by_environment && job.is_alone() && place.rank == -1 && place.world_size == -1) {
    place.rank = 0;
    place.world_size = 1;
    log::info(concat(options.caller, ": no launcher has set a rank, so this process is the only one of its job"));
  }
  const std::string launchers = " is not set; start the program with gradwire-run, torchrun, mpirun or srun, or give ";
  const auto hint = [&](const std::string& variable, const char* name) {
    return concat(variable, launchers, options.options_name, "::", name,
                  by_environment ? "" : concat(", or ?", name, "= in '", options.method, "'"),
                  job.hint.empty() ? "" : concat(" (", job.hint, " is set, so this process is not alone)"));
  };
  require_ranks(options, place, hint(job.rank_variable, "rank"), hint(job.world_size_variable, "world_size"));
  if (by_environment) {
    meet_as_launched(place, job, read, options);
  } else if (method.scheme == "file") {
    meet_in_file(place, method.place, options);
  } else {
    meet_at_address(place, options.method, method, read, options);
  }
  return place;
}

}  // namespace gradwire::internal
