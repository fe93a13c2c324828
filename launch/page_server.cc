// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "launch/page_server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>

#include "gradwire/base/strings.h"
#include "launch/launch_error.h"

namespace gradwire::launch {
namespace {

constexpr std::size_t kMostClients = 32;
constexpr std::size_t kMostRequest = 8192;
constexpr std::chrono::milliseconds kClientTime{5000};

std::string answer_with(const char* status, const std::string& type, const std::string& text) {
  return concat("HTTP/1.1 ", status, "\r\nContent-Type: ", type, "\r\nContent-Length: ", text.size(),
                "\r\nCache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n", text);
}

std::string refuse(const char* status) {
  return answer_with(status, "text/plain; charset=utf-8", concat(status, "\n"));
}

// The value of the header Host without the port, in small letters; empty where there is none.
std::string host_of(std::string request) {
  std::transform(request.begin(), request.end(), request.begin(),
                 [](unsigned char byte) { return std::tolower(byte); });
  constexpr std::string_view kName = "\r\nhost:";
  const auto begin = request.find(kName);
  if (begin == std::string::npos) return "";
  std::string host = request.substr(begin + kName.size(), request.find("\r\n", begin + 2) - begin - kName.size());
  host.erase(std::remove(host.begin(), host.end(), ' '), host.end());
  return host.substr(0, host.find(':'));
}

std::string answer_to(const std::string& request, const Pages& pages) {
  const auto line_end = request.find("\r\n");
  const std::string line = request.substr(0, line_end);
  const auto first = line.find(' ');
  const auto second = line.find(' ', first == std::string::npos ? 0 : first + 1);
  if (first == std::string::npos || second == std::string::npos || line.find("HTTP/1.", second) == std::string::npos)
    return refuse("400 Bad Request");
  if (line.substr(0, first) != "GET") return refuse("405 Method Not Allowed");
  const std::string host = host_of(request);
  if (host != "127.0.0.1" && host != "localhost") return refuse("421 Misdirected Request");
  std::string path = line.substr(first + 1, second - first - 1);
  path = path.substr(0, path.find('?'));
  const auto page = pages(path);
  return page ? answer_with("200 OK", page->type, page->text) : refuse("404 Not Found");
}

}  // namespace

PageServer::PageServer(std::uint16_t port)
    : listener_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)) {
  if (!listener_) throw_errno("--watch-port: cannot open a socket");
  const int on = 1;
  static_cast<void>(::setsockopt(listener_.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  if (::bind(listener_.get(), generic, length) != 0 || ::listen(listener_.get(), 16) != 0 ||
      ::getsockname(listener_.get(), generic, &length) != 0) {
    throw_errno(concat("--watch-port: cannot listen on port ", port, " of 127.0.0.1"));
  }
  port_ = ntohs(address.sin_port);
}

void PageServer::accept_clients() {
  while (clients_.size() < kMostClients) {
    UniqueFd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket) return;
    clients_.push_back({std::move(socket), Deadline::after(kClientTime), {}, {}});
  }
}

bool PageServer::go_on(Client& client, const Pages& pages) {
  if (client.end.expired()) return false;
  std::array<char, 2048> buffer;
  while (client.answer.empty()) {
    const ssize_t count = ::recv(client.socket.get(), buffer.data(), buffer.size(), 0);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return count < 0 && errno == EAGAIN;
    client.request.append(buffer.data(), static_cast<std::size_t>(count));
    if (client.request.find("\r\n\r\n") != std::string::npos) {
      client.answer = answer_to(client.request, pages);
    } else if (client.request.size() > kMostRequest) {
      client.answer = refuse("431 Request Header Fields Too Large");
    }
  }
  while (client.sent < client.answer.size()) {
    const ssize_t count = ::send(client.socket.get(), client.answer.data() + client.sent,
                                 client.answer.size() - client.sent, MSG_NOSIGNAL);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return errno == EAGAIN;
    client.sent += static_cast<std::size_t>(count);
  }
  return false;
}

void PageServer::serve(const Pages& pages) {
  accept_clients();
  std::erase_if(clients_, [&](Client& client) { return !go_on(client, pages); });
}

}  // namespace gradwire::launch
