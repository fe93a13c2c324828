// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// A small HTTP server on the loopback address, for a poll loop: no call waits for a client.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "gradwire/base/deadline.h"
#include "gradwire/base/os_handles.h"

namespace gradwire::launch {

// What a path shows.
struct Page {
  std::string type;  // "text/html; charset=utf-8"
  std::string text;
};

// The page of a path such as "/"; nothing where there is none.
using Pages = std::function<std::optional<Page>(std::string_view path)>;

// Only processes of this host can reach the server, and only GET is answered. A request must name the host as
// 127.0.0.1 or localhost, so that a page of another site cannot read the answers through a name of its own.
class PageServer {
 public:
  // Port 0: one that is free. Throws LaunchError, which names the port, where the port is taken.
  explicit PageServer(std::uint16_t port);
  std::uint16_t port() const noexcept { return port_; }

  // Takes requests that have come, and sends what clients take now.
  void serve(const Pages& pages);
  // Whether a request is under way.
  bool busy() const noexcept { return !clients_.empty(); }

 private:
  struct Client {
    UniqueFd socket;
    Deadline end;
    std::string request;
    std::string answer;
    std::size_t sent = 0;
  };
  void accept_clients();
  // False once the client has its answer, or has gone.
  static bool go_on(Client& client, const Pages& pages);

  UniqueFd listener_;
  std::uint16_t port_ = 0;
  std::vector<Client> clients_;
};

}  // namespace gradwire::launch
