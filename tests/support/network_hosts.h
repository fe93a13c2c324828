// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Several hosts on one machine: network namespaces with a switch between them, for tests and benchmarks.
#pragma once

#include <sys/types.h>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace gradwire::testing {

// Hosts 0 to N-1 with a network interface `eth0`, a host name and a loopback of their own each, and a bridge that joins
// them. Memory and files are the machine's. They have no names in the file system: the last process on them takes them
// along, however it ends.
class NetworkHosts {
 public:
  // Why hosts cannot be made here, in one sentence; empty where they can.
  static std::string why_not();

  // Throws std::runtime_error with what the machine refused.
  explicit NetworkHosts(int hosts);
  // Kills what still runs on the hosts.
  ~NetworkHosts();
  NetworkHosts(const NetworkHosts&) = delete;
  NetworkHosts& operator=(const NetworkHosts&) = delete;

  int count() const noexcept { return static_cast<int>(hosts_.size()) - 1; }
  std::string name(int host) const;     // "host-a", "host-b", ...
  std::string address(int host) const;  // "10.83.0.1", ...
  // The words that run the command behind them on a host.
  std::vector<std::string> enter(int host) const;
  // A shell script that takes a host's name and a command line, and runs it there, as ssh does.
  std::string shell_script() const;

  // Limits both directions of every host's link, with tc's units: "1gbit", "100mbit". Throws std::runtime_error.
  void shape(const std::string& rate);
  // Adds to the way out of every host, with tc's units: "1ms". Call after shape(). Throws std::runtime_error where the
  // kernel has no netem.
  void delay(const std::string& time);
  // Pulls a host's cable at the switch, or plugs it in: nothing is reset, nobody is told.
  void set_link(int host, bool up);

  // Bytes that a host has sent and received on eth0, headers included, from the start.
  struct Traffic {
    std::uint64_t sent = 0;
    std::uint64_t received = 0;
  };
  Traffic traffic(int host) const;

  // Processes on a host.
  std::vector<pid_t> processes(int host) const;

 private:
  struct Holder {  // a process that keeps a namespace
    pid_t pid = -1;
    std::string name;
  };

  void make_holder(const std::string& name);
  void configure(const Holder& where, const std::string& batch, const char* tool) const;
  std::size_t switch_index() const noexcept { return hosts_.size() - 1; }
  void stop() noexcept;

  std::vector<Holder> hosts_;  // the last one is the switch
  bool shaped_ = false;
};

}  // namespace gradwire::testing
