// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/backend/ucx/library_internal.h"

#include <linux/filter.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <ucs/debug/log_def.h>

#include <array>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <set>

#include "gradwire/backend/ucx/contexts_internal.h"
#include "gradwire/base/environment.h"
#include "gradwire/base/error.h"
#include "gradwire/base/log.h"
#include "gradwire/base/strings.h"

namespace gradwire::ucx {
namespace {

// UCX's words go to gradwire's log, as the library prints nothing. A peer that is gone is an error to UCX, and an
// exception to the caller, so UCX's errors are no more than information here.
ucs_log_func_rc_t log_line(const char*, unsigned, const char*, ucs_log_level_t level, const ucs_log_component_config_t*,
                           const char* format, std::va_list arguments) {
  const auto our_level = level <= UCS_LOG_LEVEL_WARN ? log::Level::info : log::Level::debug;
  if (!log::enabled(our_level)) return UCS_LOG_FUNC_RC_STOP;
  std::array<char, 512> line{};
  std::vsnprintf(line.data(), line.size(), format, arguments);
  try {
    log::write(our_level, concat("ucx: ", line.data()));
  } catch (...) {  // no memory for a line of the log
  }
  return UCS_LOG_FUNC_RC_STOP;
}

void take_the_log() {
  if (environment("UCX_LOG_LEVEL")) return;  // the user wants to read UCX's own
  static const bool taken = [] {
    ucs_log_push_handler(&log_line);
    return true;
  }();
  static_cast<void>(taken);
}

struct Setting {
  const char* name;  // without UCX_
  const char* value;
  // The variable by which a user sets it, without UCX_; null: the name. For a transport's own settings the two differ.
  const char* variable = nullptr;
};

// No rendezvous: a frame has its memory at both ends, and arrives whole. What fits a segment for sending, UCX's TCP
// takes at once: the socket copies from the user's buffer, and the rest, if the socket is full, goes into the segment.
// What is longer than a segment for receiving is put together in memory of UCX's first. UCX's TCP connects without
// waiting: where it waits, and the peer dies between that and the first bytes, UCX ends this process (an assertion in
// uct_tcp_ep_destroy_progress(), tcp_ep.c).
constexpr std::array<Setting, 4> kSettings{{{"RNDV_THRESH", "inf"},
                                            {"TX_SEG_SIZE", "128K", "TCP_TX_SEG_SIZE"},
                                            {"RX_SEG_SIZE", "128K", "TCP_RX_SEG_SIZE"},
                                            {"CONN_NB", "y", "TCP_CONN_NB"}}};

void set(ucp_config_t* config, const Setting& setting) {
  if (environment(concat("UCX_", setting.variable != nullptr ? setting.variable : setting.name).c_str())) return;
  require_ok(ucp_config_modify(config, setting.name, setting.value), "ucp_config_modify");
}

using ConfigOwner = std::unique_ptr<ucp_config_t, decltype(&ucp_config_release)>;

ConfigOwner configuration(const std::string& interface) {
  ucp_config_t* read = nullptr;
  require_ok(ucp_config_read(nullptr, nullptr, &read), "ucp_config_read");
  ConfigOwner config(read, &ucp_config_release);
  if (!user_chose_transports()) set(read, {"TLS", "tcp"});
  if (!interface.empty()) set(read, {"NET_DEVICES", interface.c_str()});
  for (const Setting& setting : kSettings) set(read, setting);
  return config;
}

// --- sockets that listen -------------------------------------------------------------------------------------------

std::set<int> listening_sockets() {
  std::set<int> listening;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const int fd = std::atoi(entry.path().filename().c_str());
    int accepts = 0;
    socklen_t bytes = sizeof(accepts);
    if (::getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &accepts, &bytes) == 0 && accepts != 0) listening.insert(fd);
  }
  return listening;
}

// Whether `address`, a worker's, names the port of the socket. So a socket that another thread has made meanwhile is
// not taken for UCX's.
bool names_port_of(int fd, const std::string& address) {
  sockaddr_storage own{};
  socklen_t bytes = sizeof(own);
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&own), &bytes) != 0) return false;
  std::array<char, sizeof(in_port_t)> port{};
  if (own.ss_family == AF_INET) {
    std::memcpy(port.data(), &reinterpret_cast<const sockaddr_in&>(own).sin_port, port.size());
  } else if (own.ss_family == AF_INET6) {
    std::memcpy(port.data(), &reinterpret_cast<const sockaddr_in6&>(own).sin6_port, port.size());
  } else {
    return false;
  }
  return address.find(std::string(port.data(), port.size())) != std::string::npos;
}

}  // namespace

void require_ok(ucs_status_t status, const char* call) {
  if (status == UCS_OK) return;
  const std::string text = concat("backend ucx: ", call, " failed: ", ucs_status_string(status));
  if (status == UCS_ERR_NO_MEMORY || status == UCS_ERR_NO_RESOURCE || status == UCS_ERR_EXCEEDS_LIMIT) {
    throw ResourceError(text);
  }
  if (status == UCS_ERR_NO_DEVICE) {
    throw InvalidArgument(
        concat(text,
               "; UCX finds no such network: look at UCX_TLS, UCX_NET_DEVICES, "
               "GRADWIRE_INTERFACE, and at /sys/class/net, where UCX reads what interfaces there are"));
  }
  throw InternalError(text);
}

bool user_chose_transports() { return environment("UCX_TLS").has_value(); }

Context::Context(const std::string& interface) {
  take_the_log();
  const ConfigOwner config = configuration(interface);
  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_NAME;
  params.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
  params.name = "gradwire";
  require_ok(ucp_init(&params, config.get(), &context_), "ucp_init");
  note_context();
}

Context::~Context() {
  if (!owner_.is_current()) return;
  ucp_cleanup(context_);
  forget_context();
}

Worker::Worker(const std::string& interface) : context_(interface) {
  const std::set<int> before = listening_sockets();
  ucp_worker_params_t params{};
  params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  params.thread_mode = UCS_THREAD_MODE_SERIALIZED;
  require_ok(ucp_worker_create(context_.get(), &params, &worker_), "ucp_worker_create");
  try {
    require_ok(ucp_worker_get_efd(worker_, &event_fd_), "ucp_worker_get_efd");
    const std::string own = address();
    for (const int fd : listening_sockets()) {
      if (!before.contains(fd) && names_port_of(fd, own)) doors_.push_back(fd);
    }
  } catch (...) {
    ucp_worker_destroy(worker_);
    throw;
  }
}

Worker::~Worker() {
  if (owner_.is_current()) ucp_worker_destroy(worker_);
}

// A filter of packets that drops them all: the kernel sees no attempt to connect then. Shutting the socket down instead
// would have UCX find an error there for ever.
void Worker::close_door() const noexcept {
  sock_filter drop_all = BPF_STMT(BPF_RET | BPF_K, 0);
  const sock_fprog program{1, &drop_all};
  for (const int fd : doors_) ::setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof(program));
}

std::string Worker::address() const {
  ucp_address_t* address = nullptr;
  std::size_t bytes = 0;
  require_ok(ucp_worker_get_address(worker_, &address, &bytes), "ucp_worker_get_address");
  std::string copy(reinterpret_cast<const char*>(address), bytes);
  ucp_worker_release_address(worker_, address);
  return copy;
}

}  // namespace gradwire::ucx
