// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "bench/network_hosts.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <utility>

#include "gradwire/base/strings.h"

namespace gradwire::bench {
namespace {

// What a child that keeps a namespace does until it is killed. Never returns.
[[noreturn]] void hold(const std::string& name, pid_t parent, int ready) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::prctl(PR_SET_NAME, "network-host");
  char error = 0;
  if (::unshare(CLONE_NEWNET | CLONE_NEWUTS) != 0 || ::sethostname(name.data(), name.size()) != 0) {
    error = static_cast<char>(errno);
  }
  const bool told = ::write(ready, &error, 1) == 1;
  ::close(ready);
  while (told && error == 0 && ::getppid() == parent) ::pause();
  ::_exit(0);
}

// Forks hold(). The error number, 0 for none.
int start_holder(const std::string& name, pid_t& pid) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return errno;
  const pid_t parent = ::getpid();
  pid = ::fork();
  if (pid == 0) hold(name, parent, ends[1]);
  ::close(ends[1]);
  char error = EIO;
  if (pid < 0 || ::read(ends[0], &error, 1) != 1) error = EIO;
  ::close(ends[0]);
  return error;
}

void end_holder(pid_t pid) {
  ::kill(pid, SIGKILL);
  ::waitpid(pid, nullptr, 0);
}

bool has_program(const char* name) {
  for (const char* folder : {"/usr/sbin/", "/sbin/", "/usr/bin/", "/bin/"}) {
    if (::access((std::string(folder) + name).c_str(), X_OK) == 0) return true;
  }
  return false;
}

ino_t network_of(pid_t pid) {
  struct stat info {};
  return ::stat(concat("/proc/", pid, "/ns/net").c_str(), &info) == 0 ? info.st_ino : 0;
}

}  // namespace

std::string NetworkHosts::why_not() {
  for (const char* program : {"ip", "tc", "nsenter"}) {
    if (!has_program(program))
      return concat("network namespaces need the program '", program, "' (iproute2, util-linux)");
  }
  pid_t pid = -1;
  const int error = start_holder("probe", pid);
  if (pid > 0) end_holder(pid);
  return error == 0 ? "" : concat("no network namespaces may be made here: ", std::strerror(error), "; run as root");
}

NetworkHosts::NetworkHosts(int hosts) {
  try {
    for (int host = 0; host < hosts; ++host) make_holder(concat("host-", static_cast<char>('a' + host)));
    make_holder("switch");
    std::string plan = "link add sw type bridge\nlink set sw up\n";
    for (int host = 0; host < hosts; ++host) {
      plan += concat("link add p", host, " type veth peer name eth0 netns ", hosts_[host].pid, "\n", "link set p", host,
                     " master sw\n", "link set p", host, " up\n");
    }
    configure(hosts_.back(), plan, "ip");
    for (int host = 0; host < hosts; ++host) {
      configure(hosts_[host], concat("link set lo up\naddr add ", address(host), "/24 dev eth0\nlink set eth0 up\n"),
                "ip");
    }
  } catch (...) {
    stop();
    throw;
  }
}

NetworkHosts::~NetworkHosts() { stop(); }

void NetworkHosts::stop() noexcept {
  for (std::size_t host = 0; host + 1 < hosts_.size(); ++host) {
    for (const pid_t pid : processes(static_cast<int>(host))) {
      if (pid != hosts_[host].pid) ::kill(pid, SIGKILL);
    }
  }
  for (const Holder& holder : hosts_) end_holder(holder.pid);
  hosts_.clear();
}

void NetworkHosts::make_holder(const std::string& name) {
  pid_t pid = -1;
  const int error = start_holder(name, pid);
  if (pid > 0) hosts_.push_back({pid, name});
  if (error != 0) throw std::runtime_error(concat("cannot make a network namespace: ", std::strerror(error)));
}

void NetworkHosts::configure(const Holder& where, const std::string& batch, const char* tool) const {
  // ip and tc lie where only root's PATH may lead. What they complain of goes to this program's stderr.
  const std::string command =
      concat("PATH=\"$PATH:/usr/sbin:/sbin\" nsenter --target ", where.pid, " --net ", tool, " -batch - >/dev/null");
  FILE* pipe = ::popen(command.c_str(), "we");
  if (pipe == nullptr) throw std::runtime_error("cannot run nsenter");
  std::fwrite(batch.data(), 1, batch.size(), pipe);
  if (::pclose(pipe) != 0) throw std::runtime_error(concat("'", tool, "' refused a line of:\n", batch));
}

std::string NetworkHosts::name(int host) const { return hosts_[host].name; }

std::string NetworkHosts::address(int host) const { return concat("10.83.0.", host + 1); }

std::vector<std::string> NetworkHosts::enter(int host) const {
  return {"nsenter", "--target", std::to_string(hosts_[host].pid), "--net", "--uts", "--"};
}

std::string NetworkHosts::shell_script() const {
  std::string script = "#!/bin/sh\nhost=$1\nshift\ncase $host in\n";
  for (int host = 0; host < count(); ++host) {
    script += concat(name(host), ") exec ", join(enter(host), " "), " sh -c \"$*\" ;;\n");
  }
  return script + "esac\necho \"no such host: $host\" >&2\nexit 255\n";
}

void NetworkHosts::shape(const std::string& rate) {
  const char* verb = shaped_ ? "replace" : "add";
  const std::string filter = concat(" root handle 1: tbf rate ", rate, " burst 256kb latency 50ms\n");
  std::string ports;
  for (int host = 0; host < count(); ++host) {
    configure(hosts_[host], concat("qdisc ", verb, " dev eth0", filter), "tc");
    ports += concat("qdisc ", verb, " dev p", host, filter);
  }
  configure(hosts_[switch_index()], ports, "tc");
  shaped_ = true;
}

void NetworkHosts::delay(const std::string& time) {
  for (int host = 0; host < count(); ++host) {
    const char* place = shaped_ ? " parent 1: handle 2:" : " root";
    try {
      configure(hosts_[host], concat("qdisc add dev eth0", place, " netem delay ", time, " limit 100000\n"), "tc");
    } catch (const std::runtime_error&) {
      throw std::runtime_error(
          concat("a delay of '", time, "' cannot be had: it is no time, or this kernel has no netem"));
    }
  }
}

void NetworkHosts::set_link(int host, bool up) {
  configure(hosts_[switch_index()], concat("link set p", host, up ? " up\n" : " down\n"), "ip");
}

// The packets go to a link address that nobody has.
void NetworkHosts::cut(int one, int other) {
  for (const auto& [from, to] : {std::pair{one, other}, std::pair{other, one}}) {
    configure(hosts_[from], concat("neigh replace ", address(to), " lladdr 02:00:00:00:00:01 dev eth0 nud permanent\n"),
              "ip");
  }
}

NetworkHosts::Traffic NetworkHosts::traffic(int host) const {
  std::ifstream table(concat("/proc/", hosts_[host].pid, "/net/dev"));
  for (std::string line; std::getline(table, line);) {
    const auto colon = line.find("eth0:");
    if (colon == std::string::npos) continue;
    std::istringstream numbers(line.substr(colon + 5));
    std::array<std::uint64_t, 9> columns{};
    for (auto& column : columns) numbers >> column;
    return {.sent = columns[8], .received = columns[0]};
  }
  throw std::runtime_error(concat("host ", host, " has no eth0"));
}

std::vector<pid_t> NetworkHosts::processes(int host) const {
  std::vector<pid_t> found;
  const ino_t network = network_of(hosts_[host].pid);
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const std::string text = entry.path().filename();
    pid_t pid = 0;
    const auto [rest, problem] = std::from_chars(text.data(), text.data() + text.size(), pid);
    if (problem != std::errc() || *rest != '\0') continue;
    if (network != 0 && network_of(pid) == network) found.push_back(pid);
  }
  return found;
}

}  // namespace gradwire::bench
