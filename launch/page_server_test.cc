// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "launch/page_server.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>

#include "gradwire/base/strings.h"
#include "launch/launch_error.h"

namespace gradwire::launch::page_server_test {
namespace {

std::optional<Page> pages(std::string_view path) {
  if (path == "/") return Page{"text/html", "hello"};
  if (path == "/long") return Page{"text/plain", std::string(20'000'000, 'x')};
  return std::nullopt;
}

UniqueFd connect_to(const PageServer& server) {
  UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(server.port());
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  return socket;
}

void send_to(const UniqueFd& socket, const std::string& text) {
  EXPECT_EQ(::send(socket.get(), text.data(), text.size(), MSG_NOSIGNAL), static_cast<ssize_t>(text.size()));
}

// All that comes until the server closes, while the server serves.
std::string answer(PageServer& server, const UniqueFd& socket) {
  std::string text;
  std::array<char, 65536> buffer;
  const Deadline guard = Deadline::after(std::chrono::seconds(30));
  while (!guard.expired()) {
    server.serve(pages);
    const ssize_t count = ::recv(socket.get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (count == 0) return text;
    if (count > 0) text.append(buffer.data(), static_cast<std::size_t>(count));
    if (count < 0 && errno != EAGAIN) return text;
  }
  ADD_FAILURE() << "no end of the answer";
  return text;
}

std::string ask(PageServer& server, const std::string& request) {
  const UniqueFd socket = connect_to(server);
  send_to(socket, request);
  return answer(server, socket);
}

std::string get(const std::string& path, const std::string& host = "127.0.0.1:80") {
  return concat("GET ", path, " HTTP/1.1\r\nHost: ", host, "\r\n\r\n");
}

TEST(PageServer, ServesPagesToThisHost) {
  PageServer server(0);
  EXPECT_NE(server.port(), 0);
  const std::string page = ask(server, get("/"));
  EXPECT_TRUE(page.starts_with("HTTP/1.1 200 OK\r\n")) << page;
  EXPECT_NE(page.find("Content-Length: 5\r\n"), std::string::npos);
  EXPECT_TRUE(page.ends_with("\r\n\r\nhello")) << page;
  EXPECT_TRUE(ask(server, get("/?a=b", "localhost")).ends_with("hello"));
  EXPECT_FALSE(server.busy());
}

TEST(PageServer, RefusesWhatIsNoQuestionOfThisHost) {
  PageServer server(0);
  EXPECT_TRUE(ask(server, get("/nothing")).starts_with("HTTP/1.1 404"));
  EXPECT_TRUE(ask(server, get("/", "evil.example")).starts_with("HTTP/1.1 421"));
  EXPECT_TRUE(ask(server, "GET / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 421")) << "no host";
  EXPECT_TRUE(ask(server, "POST / HTTP/1.1\r\nHost: localhost\r\n\r\n").starts_with("HTTP/1.1 405"));
  EXPECT_TRUE(ask(server, "nonsense\r\n\r\n").starts_with("HTTP/1.1 400"));
  EXPECT_TRUE(ask(server, get("/" + std::string(9000, 'x')).substr(0, 9000)).starts_with("HTTP/1.1 431"));
}

TEST(PageServer, WaitsForNobody) {
  PageServer server(0);
  const UniqueFd silent = connect_to(server);
  const UniqueFd halfway = connect_to(server);
  send_to(halfway, "GET / HT");
  // A client that reads nothing of a long page yet.
  const UniqueFd slow = connect_to(server);
  send_to(slow, get("/long"));
  EXPECT_TRUE(ask(server, get("/")).ends_with("hello"));
  EXPECT_TRUE(server.busy());
  send_to(halfway, "TP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_TRUE(answer(server, halfway).ends_with("hello"));
  EXPECT_GT(answer(server, slow).size(), 20'000'000U);
}

TEST(PageServer, APortThatIsTakenIsSaid) {
  const PageServer first(0);
  try {
    const PageServer second(first.port());
    FAIL() << "two servers on one port";
  } catch (const LaunchError& error) {
    EXPECT_NE(std::string(error.what()).find(std::to_string(first.port())), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace gradwire::launch::page_server_test
