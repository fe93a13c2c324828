// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// TcpStore: servers that die, stall, come late or are none; clients that send garbage, nothing, or half of something.
#include "gradwire/store/tcp_store.h"

#include <array>
#include <csignal>
#include <fstream>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <stdexcept>
#include <vector>

#include "gradwire/base/error.h"
#include "gradwire/base/interrupt.h"
#include "gradwire/base/strings.h"
#include "gradwire/store/handshake_internal.h"
#include "gradwire/store/key_value_map_internal.h"
#include "gradwire/store/raw_socket_test_internal.h"
#include "gradwire/store/store_test_support_internal.h"
#include "gradwire/store/tcp_store_connection_internal.h"
#include "gradwire/store/tcp_store_protocol_internal.h"
#include "gradwire/store/tcp_store_server_internal.h"
#include "tests/support/secrets.h"

namespace gradwire::tcp_store_test {
namespace {

using store_internal::Operation;
using store_internal::Request;
using store_internal::TcpStoreServer;
using store_test::message_of;
using store_test::RawSocket;
using Keys = std::vector<std::string>;

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

std::string length_bytes(std::uint64_t length) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes += static_cast<char>(length >> (8 * i));
  return bytes;
}

std::size_t resident_bytes() {
  std::ifstream in("/proc/self/statm");
  std::size_t total = 0;
  std::size_t resident = 0;
  in >> total >> resident;
  return resident * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
}

std::uint16_t free_port() { return RawSocket::bind(0).port(); }

TcpStoreOptions client_of(std::uint16_t port) { return {.port = port}; }

// A server in a process of its own.
class ServerProcess {
 public:
  ServerProcess() {
    std::array<int, 2> pipe{};
    if (::pipe(pipe.data()) != 0) throw std::runtime_error("no pipe");
    child_ = store_test::fork_child([&] {
      const TcpStore store(TcpStoreOptions{.is_server = true});
      const std::uint16_t port = store.port();
      if (::write(pipe[1], &port, sizeof port) != sizeof port) return 1;
      for (;;) ::pause();
    });
    ::close(pipe[1]);
    if (::read(pipe[0], &port_, sizeof port_) != sizeof port_) throw std::runtime_error("the server did not start");
    ::close(pipe[0]);
  }
  ~ServerProcess() { kill(); }

  std::uint16_t port() const { return port_; }
  void stop() {
    ::kill(child_, SIGSTOP);
    int status = 0;
    while (::waitpid(child_, &status, WUNTRACED) < 0 && errno == EINTR) {
    }
  }
  void kill() {
    if (child_ <= 0) return;
    ::kill(child_, SIGKILL);
    store_test::wait_for(child_);
    child_ = 0;
  }

 private:
  pid_t child_ = 0;
  std::uint16_t port_ = 0;
};

TEST(TcpStoreTest, AServerThatDiesEndsAWaitAtOnce) {
  ServerProcess server;
  TcpStore store(client_of(server.port()));
  TcpStore other(client_of(server.port()));  // each with a connection
  const auto begin = Deadline::Clock::now();
  auto value = std::async(std::launch::async, [&] { return store.get("never"); });
  auto popped = std::async(std::launch::async, [&] { return other.queue_pop("never"); });
  EXPECT_EQ(value.wait_for(Milliseconds(50)), std::future_status::timeout);
  server.kill();
  const std::string text = message_of<StoreError>([&] { value.get(); });
  EXPECT_TRUE(contains(text, "ended") && contains(text, "get of 'never'")) << text;
  EXPECT_TRUE(contains(message_of<StoreError>([&] { popped.get(); }), "queue_pop of 'never'"));
  EXPECT_THROW(store.set("key", "value"), StoreError);
  EXPECT_THROW(store.set("key", "value"), StoreError);
  EXPECT_THROW(store.clone(), StoreError);
  EXPECT_LT(Deadline::Clock::now() - begin, std::chrono::minutes(1)) << "not the 30 minutes of the timeout";
}

TEST(TcpStoreTest, AServerThatStallsIsATimeout) {
  ServerProcess server;
  TcpStore store(client_of(server.port()));
  store.set_timeout(Milliseconds(200));
  server.stop();
  EXPECT_TRUE(contains(message_of<TimeoutError>([&] { store.set("key", "value"); }), "did not answer"));
  EXPECT_TRUE(contains(message_of<TimeoutError>([&] { store.get("key"); }), "get of 'key'"));
  store.set_timeout(kDefaultTimeout);
  EXPECT_TRUE(contains(message_of<TimeoutError>([&] {
                         store.wait(Keys{"a", "b"}, Milliseconds(0));
                       }),
                       "wait of 'a', 'b'"));
  EXPECT_THROW(store.wait(Keys{"key"}, Milliseconds(10)), TimeoutError);
  EXPECT_THROW(TcpStore({.port = server.port(), .timeout = Milliseconds(300)}), TimeoutError);
}

TEST(TcpStoreTest, ClosingTheServerEndsItsClientsWaits) {
  auto server = std::make_unique<TcpStore>(TcpStoreOptions{.is_server = true});
  TcpStore store(client_of(server->port()));
  auto value = std::async(std::launch::async, [&] { return store.get("never"); });
  EXPECT_EQ(value.wait_for(Milliseconds(50)), std::future_status::timeout);
  server.reset();
  EXPECT_THROW(value.get(), StoreError);
}

TEST(TcpStoreTest, ClosingTheServerWorksThoughAForkedChildLivesOn) {
  auto server = std::make_unique<TcpStore>(TcpStoreOptions{.is_server = true});
  const std::uint16_t port = server->port();
  TcpStore store(client_of(port));
  auto value = std::async(std::launch::async, [&] { return store.get("never"); });
  EXPECT_EQ(value.wait_for(Milliseconds(50)), std::future_status::timeout);
  const pid_t child = store_test::fork_child([]() -> int {
    for (;;) ::pause();
  });
  server.reset();
  EXPECT_THROW(value.get(), StoreError);
  EXPECT_EQ(TcpStore({.port = port, .is_server = true}).add("n", 1), 1) << "the port is free again";
  ::kill(child, SIGKILL);
  store_test::wait_for(child);
}

TEST(TcpStoreTest, ACloneKeepsTheServerAlive) {
  auto server = std::make_shared<TcpStore>(TcpStoreOptions{.is_server = true});
  TcpStore store(client_of(server->port()));
  const auto clone = server->clone();
  server.reset();
  store.set("key", "value");
  EXPECT_EQ(clone->get("key"), "value");
}

TEST(TcpStoreTest, AClientWaitsForAServerThatStartsLater) {
  const std::uint16_t port = free_port();
  auto client = std::async(std::launch::async, [&] { return TcpStore(client_of(port)).get("key"); });
  EXPECT_EQ(client.wait_for(Milliseconds(150)), std::future_status::timeout);
  TcpStore server({.port = port, .is_server = true});
  server.set("key", "value");
  EXPECT_EQ(client.get(), "value");
}

// A client that waits for the server says so, by default once.
TEST(TcpStoreTest, AWaitForTheServerIsReported) {
  const std::uint16_t port = free_port();
  std::string said;
  // A machine that stands still for all of the time says nothing.
  for (Milliseconds time{200}; said.empty() && time < std::chrono::minutes(1); time *= 10) {
    ::testing::internal::CaptureStderr();
    EXPECT_THROW(store_internal::TcpStoreConnection("127.0.0.1", port, "", Deadline::after(time),
                                                    store_internal::TcpStoreConnection::Retry::yes,
                                                    {.info = Milliseconds(1), .notice = Milliseconds(1)}),
                 TimeoutError);
    said = ::testing::internal::GetCapturedStderr();
  }
  const std::string sentence = concat("TcpStore 127.0.0.1:", port, " has waited 0 s for the rank that runs the server");
  const std::size_t first = said.find(sentence);
  EXPECT_NE(first, std::string::npos) << said;
  EXPECT_EQ(said.find(sentence, first + 1), std::string::npos) << said;
}

TEST(TcpStoreTest, NobodyThereIsATimeoutThatNamesTheAddress) {
  const std::uint16_t port = free_port();
  const auto text =
      message_of<TimeoutError>([&] { TcpStore({.host = "localhost", .port = port, .timeout = Milliseconds(150)}); });
  EXPECT_TRUE(contains(text, "localhost:" + std::to_string(port))) << text;
  EXPECT_TRUE(contains(text, "could not connect in time")) << text << ": the name was found";
}

// The calling thread of `body` is interrupted while `body` waits.
template <class Body>
void expect_interruptible(const Body& body) {
  static thread_local int looks = 0;
  looks = 0;
  set_interrupt_check(+[]() noexcept { return ++looks > 3; });
  const auto begin = Deadline::Clock::now();
  EXPECT_THROW(body(), AbortedError);
  set_interrupt_check(nullptr);
  EXPECT_LT(Deadline::Clock::now() - begin, std::chrono::minutes(1)) << "not the 30 minutes of the timeout";
}

TEST(TcpStoreTest, AnInterruptedThreadStopsWaiting) {
  const std::uint16_t nobody = free_port();
  for (const char* host : {"127.0.0.1", "localhost"})
    expect_interruptible([&] { TcpStore({.host = host, .port = nobody}); });
  expect_interruptible([] { TcpStore({.is_server = true, .world_size = 2, .wait_for_workers = true}); });
  ServerProcess server;
  TcpStore store(client_of(server.port()));
  expect_interruptible([&] { store.get("never"); });
  store.set("key", "value");
  EXPECT_EQ(store.get("key"), "value") << "the interruption costs the connection, not the store";
  server.stop();
  expect_interruptible([&] { store.set("key", "other"); });
  expect_interruptible([&] { TcpStore(client_of(server.port())); });
}

TEST(TcpStoreTest, ANumericAddressOfIpv6HasItsBracketsInMessages) {
  const std::uint16_t nobody = free_port();
  const auto text = message_of<Error>([&] { TcpStore({.host = "::1", .port = nobody, .timeout = Milliseconds(200)}); });
  EXPECT_TRUE(contains(text, "TcpStore [::1]:" + std::to_string(nobody))) << text;
}

TEST(TcpStoreTest, APortInUseIsOneClearSentence) {
  TcpStore server({.is_server = true});
  const auto text = message_of<StoreError>([&] { TcpStore({.port = server.port(), .is_server = true}); });
  EXPECT_TRUE(contains(text, "port " + std::to_string(server.port()) + " is in use")) << text;
  // Also where the address is that of all interfaces.
  EXPECT_THROW(TcpStoreServer({.bind_address = "", .port = server.port()}), StoreError);
}

TEST(TcpStoreTest, StoresOfOneProcessMayShareAServer) {
  auto one = std::make_unique<TcpStore>(TcpStoreOptions{.is_server = true, .multi_tenant = true});
  const std::uint16_t port = one->port();
  auto two = std::make_unique<TcpStore>(TcpStoreOptions{.port = port, .is_server = true, .multi_tenant = true});
  one->set("key", "value");
  EXPECT_EQ(two->get("key"), "value");
  EXPECT_THROW(TcpStore({.port = port, .is_server = true}), StoreError) << "it does not want to share";
  if (test_support::has_secrets()) {
    const auto text = message_of<StoreError>(
        [&] { TcpStore({.port = port, .is_server = true, .secret = "s", .multi_tenant = true}); });
    EXPECT_TRUE(contains(text, "another secret")) << text;
  }
  one.reset();
  EXPECT_EQ(TcpStore(client_of(port)).get("key"), "value");
  EXPECT_THROW(TcpStore({.host = "0.0.0.0", .port = port, .is_server = true, .multi_tenant = true}), StoreError)
      << "another address";
  two.reset();
  const TcpStore three({.port = port, .is_server = true, .multi_tenant = true});
  EXPECT_FALSE(TcpStore(client_of(port)).check(Keys{"key"})) << "the last one took the server along";
}

// The last store of one thread may end while another thread begins to share its server.
TEST(TcpStoreTest, AServerThatEndsIsInNobodysWay) {
  const std::uint16_t port = free_port();
  store_test::run_threads(3, [&](int) {
    for (int i = 0; i < 200; ++i) TcpStore({.port = port, .is_server = true, .multi_tenant = true}).set("key", "");
  });
}

TEST(TcpStoreTest, AForkedChildDoesNotShareItsParentsServer) {
  const TcpStore parents({.is_server = true, .multi_tenant = true});
  const pid_t child = store_test::fork_child([port = parents.port()]() -> int {
    // The child holds a copy of the listening socket, so the port is taken.
    return message_of<StoreError>([&] { TcpStore({.port = port, .is_server = true, .multi_tenant = true}); }).empty();
  });
  EXPECT_EQ(store_test::wait_for(child), 0);
}

TEST(TcpStoreTest, APortCanBeUsedAgainAtOnce) {
  const std::uint16_t port = free_port();
  for (int job = 0; job < 5; ++job) {
    TcpStore server({.port = port, .is_server = true});
    TcpStore client(client_of(port));
    EXPECT_EQ(client.add("count", 1), 1) << "each server starts empty";
  }
}

TEST(TcpStoreTest, AReservedPortCanBeTakenOver) {
  const RawSocket reserved = RawSocket::bind(0, true);
  EXPECT_THROW(TcpStore({.port = reserved.port(), .is_server = true}), StoreError);
  TcpStore server({.port = reserved.port(), .is_server = true, .reuse_port = true});
  TcpStore(client_of(reserved.port())).set("key", "value");
  EXPECT_EQ(server.get("key"), "value");
}

TEST(TcpStoreTest, AllInterfacesMeansIPv4Too) {
  TcpStoreServer server({});
  TcpStore store(client_of(server.port()));
  store.set("key", "value");
  EXPECT_EQ(TcpStore({.host = "localhost", .port = server.port()}).get("key"), "value");
}

TEST(TcpStoreTest, AnotherProgramOnThePortIsRecognised) {
  for (const std::string& says : {std::string("HTTP/1.1 400 Bad Request\r\n\r\n"), std::string("gwtcps\x02\0", 8)}) {
    RawSocket listener = RawSocket::bind(0);
    listener.listen();
    auto other = std::async(std::launch::async, [&] {
      RawSocket connection = listener.accept();
      connection.send(says);
      connection.is_closed_by_peer();
    });
    const auto text = message_of<StoreError>([&] { TcpStore store(client_of(listener.port())); });
    EXPECT_TRUE(contains(text, says[0] == 'H' ? "another program" : "version 2")) << text;
    other.get();
  }
}

// The timeout is one for all that the constructor does.
TEST(TcpStoreTest, AServerThatGreetsLateAndThenStallsIsATimeout) {
  RawSocket listener = RawSocket::bind(0);
  listener.listen();
  constexpr Milliseconds kTimeout{2000};
  auto other = std::async(std::launch::async, [&] {
    RawSocket connection = listener.accept();
    static_cast<void>(listener.is_readable(kTimeout - kTimeout / 10));  // nobody else comes
    connection.send(store_internal::server_hello());
    connection.is_closed_by_peer();
  });
  const auto begin = Deadline::Clock::now();
  const std::string text =
      message_of<TimeoutError>([&] { TcpStore({.port = listener.port(), .world_size = 2, .timeout = kTimeout}); });
  EXPECT_TRUE(contains(text, "(join)")) << text;
  EXPECT_LT(Deadline::Clock::now() - begin, kTimeout + kTimeout / 2);
  other.get();
}

TEST(TcpStoreTest, OneThatClosesEveryConnectionIsGivenUp) {
  RawSocket listener = RawSocket::bind(0);
  listener.listen();
  const std::uint16_t port = listener.port();
  auto client =
      std::async(std::launch::async, [&] { return message_of<StoreError>([&] { TcpStore store(client_of(port)); }); });
  while (client.wait_for(Milliseconds(0)) != std::future_status::ready) {
    if (listener.is_readable(Milliseconds(20))) static_cast<void>(listener.accept());
  }
  EXPECT_TRUE(contains(client.get(), "another program"));
}

TEST(TcpStoreTest, AReplyThatMakesNoSenseIsAnError) {
  RawSocket listener = RawSocket::bind(0);
  listener.listen();
  for (const std::string& reply : {length_bytes(1ULL << 63), length_bytes(0), length_bytes(3) + "abc"}) {
    auto other = std::async(std::launch::async, [&] {
      RawSocket connection = listener.accept();
      connection.send(store_internal::server_hello() + reply);
      connection.is_closed_by_peer();
    });
    {
      TcpStore store(client_of(listener.port()));
      EXPECT_TRUE(contains(message_of<StoreError>([&] { store.set("key", "value"); }), "malformed"));
    }
    other.get();
  }
}

TEST(TcpStoreTest, OptionsThatMakeNoSenseAreRefused) {
  EXPECT_THROW(TcpStore({.port = 0}), InvalidArgument);
  EXPECT_THROW(TcpStore({.host = "", .port = 1}), InvalidArgument);
  EXPECT_THROW(TcpStore({.is_server = true, .world_size = 0}), InvalidArgument);
  EXPECT_THROW(TcpStore({.is_server = true, .timeout = Milliseconds(-1)}), InvalidArgument);
  EXPECT_THROW(TcpStore({.is_server = true, .bind_address = "no address"}), InvalidArgument);
}

TEST(TcpStoreTest, TheServerWaitsForAllWorkers) {
  const std::uint16_t port = free_port();
  store_test::run_threads(3, [&](int rank) {
    TcpStore store({.port = port, .is_server = rank == 0, .world_size = 3});
    store.set(std::to_string(rank), "");
    if (rank == 0) store.wait(Keys{"1", "2"});
  });
  const auto text =
      message_of<TimeoutError>([&] { TcpStore({.is_server = true, .world_size = 2, .timeout = Milliseconds(100)}); });
  EXPECT_TRUE(contains(text, "1 of 2 ranks")) << text;
}

TEST(TcpStoreTest, MoreThanAMessageHoldsGoesInSeveral) {
  TcpStore server({.is_server = true});
  const Keys keys{"a", "b", "c", "d", "e"};
  Keys values;
  for (int i = 0; i < 5; ++i) values.emplace_back(Store::kMaxValueBytes, static_cast<char>('0' + i));
  server.multi_set(keys, values);
  EXPECT_TRUE(server.multi_get(keys) == values);
  const Keys many(1'100, std::string(Store::kMaxKeyBytes, 'k'));
  EXPECT_THROW(server.check(many), InvalidArgument);
}

class Garbage : public ::testing::Test {
 protected:
  RawSocket greeted() {
    RawSocket socket = RawSocket::connect(server_.port());
    EXPECT_TRUE(socket.send(store_internal::client_hello()));
    EXPECT_EQ(socket.receive(store_internal::kHelloBytes), store_internal::server_hello());
    return socket;
  }

  TcpStore server_{TcpStoreOptions{.is_server = true}};
};

TEST_F(Garbage, ClosesItsOwnConnectionAndNoOther) {
  TcpStore live(client_of(server_.port()));
  auto waiting = std::async(std::launch::async, [&] { return live.get("late"); });
  std::mt19937 random(11);
  std::string noise(5'000, '\0');
  for (char& byte : noise) byte = static_cast<char>(random());
  for (const std::string& says :
       {std::string("GET / HTTP/1.1\r\nHost: x\r\n\r\n"), std::string("\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03", 11),
        std::string(4'096, '\0'), noise, std::string("gwtcps\x01\0", 8)}) {
    RawSocket socket = RawSocket::connect(server_.port());
    socket.send(says);
    EXPECT_TRUE(socket.is_closed_by_peer());
    EXPECT_EQ(live.add("alive", 0), 0);
  }
  const std::string known = store_internal::encode(Request{Operation::add, 1, {"n"}, {}});
  for (const std::string& says : {length_bytes(1ULL << 63), length_bytes(~0ULL), length_bytes(0),
                                  length_bytes(store_internal::kMaxMessageBytes + 1), length_bytes(4) + "abcd",
                                  length_bytes(known.size() - 8 + 1) + known.substr(8) + "x",
                                  length_bytes(13) + std::string("\x06\0\0\0\0\0\0\0\0\xff\xff\xff\xff", 13)}) {
    RawSocket socket = greeted();
    socket.send(says);
    EXPECT_TRUE(socket.is_closed_by_peer());
    EXPECT_EQ(live.add("alive", 0), 0);
  }
  live.set("late", "served all along");
  EXPECT_EQ(waiting.get(), "served all along");
}

TEST_F(Garbage, AMessageCutShortIsNotCarriedOut) {
  const std::string message = store_internal::encode(Request{Operation::add, 1, {"n"}, {}});
  for (std::size_t cut = 0; cut <= message.size(); ++cut) {
    RawSocket socket = greeted();
    EXPECT_TRUE(socket.send(message.substr(0, cut)));
    if (cut == message.size()) {
      EXPECT_FALSE(socket.receive(1).empty());
    }
  }
  EXPECT_EQ(server_.get("n"), "1") << "only the whole one counted";
}

TEST_F(Garbage, LeavesMemoryFlat) {
  const auto waste = [&](int rounds) {
    for (int i = 0; i < rounds; ++i) {
      for (const std::uint64_t length : {1ULL << 63, ~0ULL, 1ULL << 32}) {
        RawSocket socket = greeted();
        socket.send(length_bytes(length) + std::string(2'000, 'x'));
        EXPECT_TRUE(socket.is_closed_by_peer());
      }
      RawSocket scanner = RawSocket::connect(server_.port());
      scanner.send("GET / HTTP/1.1\r\n\r\n");
      EXPECT_TRUE(scanner.is_closed_by_peer());
    }
  };
  waste(20);
  const std::size_t before = resident_bytes();
  waste(200);
  // Forty clients that announce the most a message may have, 2.5 GiB in all, and send next to nothing.
  std::vector<RawSocket> idle;
  for (int i = 0; i < 40; ++i) {
    idle.push_back(greeted());
    EXPECT_TRUE(idle.back().send(length_bytes(store_internal::kMaxMessageBytes) + "x"));
  }
  EXPECT_EQ(server_.add("alive", 1), 1);
  const std::size_t after = resident_bytes();
  EXPECT_LT(after, before + 32 * 1024 * 1024) << "resident bytes before: " << before;
}

TEST_F(Garbage, BytesDuringAWaitCloseTheConnection) {
  RawSocket socket = greeted();
  EXPECT_TRUE(socket.send(store_internal::encode(Request{Operation::get, 1'000'000, {"never"}, {}})));
  EXPECT_EQ(server_.add("alive", 1), 1);
  EXPECT_TRUE(socket.send("x"));
  EXPECT_TRUE(socket.is_closed_by_peer());
}

TEST_F(Garbage, OneWhoHangsUpTakesNoElement) {
  for (int round = 0; round < 10; ++round) {
    {
      RawSocket socket = greeted();
      EXPECT_TRUE(socket.send(store_internal::encode(Request{Operation::queue_pop, 1'000'000, {"q"}, {}})));
      server_.add("alive", 1);
    }
    // The end of the connection reached the server's loop before these round trips did.
    for (int i = 0; i < 3; ++i) server_.add("alive", 1);
    server_.queue_push("q", "element");
    EXPECT_EQ(server_.queue_length("q"), 1);
    EXPECT_EQ(server_.queue_pop("q"), "element");
  }
}

TEST_F(Garbage, AClientOfAnotherVersionIsToldOurs) {
  RawSocket socket = RawSocket::connect(server_.port());
  EXPECT_TRUE(socket.send(std::string("gwtcpc\x07\0", 8)));
  EXPECT_EQ(socket.receive(8), store_internal::server_hello());
  EXPECT_TRUE(socket.is_closed_by_peer());
}

TEST(TcpStoreStrangers, WhoeverSaysNothingIsClosedInTime) {
  TcpStoreServer server({.bind_address = "127.0.0.1", .hello_timeout = Milliseconds(100)});
  RawSocket silent = RawSocket::connect(server.port());
  RawSocket slow = RawSocket::connect(server.port());
  slow.send("gwtc");
  TcpStore store(client_of(server.port()));
  EXPECT_TRUE(silent.is_closed_by_peer());
  EXPECT_TRUE(slow.is_closed_by_peer());
  store.set("key", "value");
  EXPECT_EQ(store.get("key"), "value") << "a client that said hello may stay idle";
}

TEST(TcpStoreStrangers, ACrowdOfThemShutsNobodyOut) {
  TcpStoreServer server(
      {.bind_address = "127.0.0.1", .hello_timeout = std::chrono::minutes(10), .max_unauthenticated = 16});
  std::vector<RawSocket> crowd;
  for (int i = 0; i < 100; ++i) crowd.push_back(RawSocket::connect(server.port()));
  TcpStore store(client_of(server.port()));
  store.set("key", "value");
  EXPECT_EQ(store.get("key"), "value");
  EXPECT_TRUE(crowd.front().is_closed_by_peer());
}

// Tries again until the server's loop has seen that others have gone.
template <class Call>
void eventually(Call call) {
  const Deadline guard = Deadline::after(std::chrono::minutes(1));
  for (;;) {
    try {
      return call();
    } catch (const StoreError&) {
      if (guard.expired()) throw;
    }
  }
}

TEST(TcpStoreLimitsTest, MoreConnectionsThanTheLimitAreRefusedAndSaid) {
  TcpStore server({.is_server = true, .limits = {.connections = 3}});  // the server's own is one of them
  auto one = std::make_unique<TcpStore>(client_of(server.port()));
  TcpStore two(client_of(server.port()));
  const auto text = message_of<StoreError>([&] { TcpStore three(client_of(server.port())); });
  EXPECT_TRUE(contains(text, "TcpStoreLimits::connections")) << text;
  two.set("key", "value");
  EXPECT_EQ(server.get("key"), "value") << "those who are in are served";
  one.reset();
  eventually([&] { EXPECT_EQ(TcpStore(client_of(server.port())).get("key"), "value"); });
  EXPECT_THROW(TcpStore({.is_server = true, .limits = {.connections = 0}}), InvalidArgument);
}

TEST(TcpStoreLimitsTest, StrangersDoNotCountAsConnections) {
  TcpStore server({.is_server = true, .limits = {.connections = 2}});
  const RawSocket stranger = RawSocket::connect(server.port());
  TcpStore(client_of(server.port())).set("key", "value");
  EXPECT_EQ(server.get("key"), "value");
}

TEST(TcpStoreLimitsTest, AStoreThatIsFullRefusesMoreAndKeepsWhatItHas) {
  constexpr std::size_t kEntry = store_internal::KeyValueMap::kEntryBytes;
  // Room for "a" with ten bytes and the queue "q" with five, to the byte.
  TcpStore store({.is_server = true, .limits = {.stored_bytes = 2 * kEntry + 1 + 10 + 1 + 5}});
  store.set("a", std::string(10, 'v'));
  store.queue_push("q", "12345");
  const std::vector<std::function<void()>> refused = {
      [&] { store.set("b", ""); },
      [&] { store.set("a", std::string(11, 'v')); },
      [&] { store.append("a", "v"); },
      [&] { store.append("b", "v"); },
      [&] { store.add("n", 1); },
      [&] { store.compare_set("b", "", "v"); },
      [&] {
        store.multi_set(Keys{"a", "b"}, Keys{std::string(10, 'v'), "v"});
      },
      [&] { store.queue_push("q", ""); },
  };
  for (const auto& call : refused) {
    const auto text = message_of<StoreError>(call);
    EXPECT_TRUE(contains(text, "TcpStoreLimits::stored_bytes")) << text;
  }
  EXPECT_EQ(store.get("a"), std::string(10, 'v'));
  EXPECT_EQ(store.num_keys(), 1);
  store.set("a", std::string(10, 'w'));
  EXPECT_EQ(store.queue_pop("q"), "12345");
  store.set("b", "12345");
  EXPECT_THROW(store.queue_push("q", ""), StoreError);
  EXPECT_TRUE(store.delete_key("b"));
  store.queue_push("q", "12345");
  EXPECT_EQ(store.queue_length("q"), 1);
}

// A client that holds `bytes` of a message that never ends, or nothing when the server dropped the message: a probe
// that the server read at the same time had taken the room.
std::optional<RawSocket> try_unfinished(std::uint16_t port, TcpStore& server, std::size_t bytes) {
  RawSocket socket = RawSocket::connect(port);
  EXPECT_TRUE(socket.send(store_internal::client_hello()));
  EXPECT_EQ(socket.receive(store_internal::kHelloBytes), store_internal::server_hello());
  EXPECT_TRUE(socket.send(length_bytes(2 * bytes) + std::string(bytes, 'x')));
  for (int probe = 0; probe < 100; ++probe) {
    try {
      server.set("probe", std::string(bytes, 'p'));
    } catch (const StoreError&) {
      return socket;  // the server has read a part of the message: there is no room for as much again
    }
  }
  return std::nullopt;
}

RawSocket unfinished(std::uint16_t port, TcpStore& server, std::size_t bytes) {
  const Deadline guard = Deadline::after(std::chrono::minutes(1));
  while (!guard.expired()) {
    if (auto socket = try_unfinished(port, server, bytes)) return *std::move(socket);
  }
  throw std::runtime_error("the server took every probe beside an unfinished message");
}

TEST(TcpStoreLimitsTest, MessagesShareABoundAndSmallOnesAreFree) {
  constexpr std::size_t kLarge = 600 * 1024;
  TcpStore server({.is_server = true, .limits = {.message_bytes = 1024 * 1024}});
  const auto text = message_of<StoreError>([&] { server.set("key", std::string(2 * kLarge, 'v')); });
  EXPECT_TRUE(contains(text, "TcpStoreLimits::message_bytes")) << text;
  server.set("large", std::string(kLarge, 'v'));
  server.queue_push("q", std::string(kLarge, 'e'));
  {
    const RawSocket greedy = unfinished(server.port(), server, kLarge);
    server.set("small", "served all the same");
    EXPECT_EQ(server.get("small"), "served all the same");
    EXPECT_TRUE(contains(message_of<StoreError>([&] { server.get("large"); }), "TcpStoreLimits::message_bytes"));
    EXPECT_THROW(server.queue_pop("q"), StoreError);
    EXPECT_EQ(server.queue_length("q"), 1) << "an element that cannot be sent stays";
  }
  eventually([&] { EXPECT_EQ(server.get("large"), std::string(kLarge, 'v')); });
  EXPECT_EQ(server.queue_pop("q"), std::string(kLarge, 'e'));
}

TEST(TcpStoreLimitsTest, ManyKeysComeInAsManyRepliesAsThereIsRoomFor) {
  TcpStore server({.is_server = true, .limits = {.message_bytes = 1000}});
  Keys keys;
  for (int i = 1000; i < 4000; ++i) {
    keys.push_back(concat(std::string(50, 'k'), i));
    server.set(keys.back(), "");
  }
  keys.push_back(std::string(Store::kMaxKeyBytes - 1000, 'l'));  // larger than the room by itself
  server.set(keys.back(), "");
  EXPECT_EQ(server.list_keys(), keys);
}

TEST(TcpStoreLimitsTest, ManyValuesComeInAsManyRepliesAsThereIsRoomFor) {
  TcpStore server({.is_server = true, .limits = {.message_bytes = 1024 * 1024}});
  Keys keys;
  for (int i = 0; i < 8; ++i) {
    keys.push_back(std::to_string(i));
    server.set(keys.back(), std::string(300'000, static_cast<char>('0' + i)));
  }
  const Keys values = server.multi_get(keys);
  ASSERT_EQ(values.size(), keys.size());
  for (int i = 0; i < 8; ++i) EXPECT_EQ(values[i], std::string(300'000, static_cast<char>('0' + i)));
}

class TcpStoreSecret : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!test_support::has_secrets()) GTEST_SKIP() << test_support::kNoSecrets;
  }
};

TEST_F(TcpStoreSecret, WhoeverKnowsItIsServed) {
  const std::string secret("any bytes \0 at all", 18);
  TcpStore server({.is_server = true, .secret = secret});
  TcpStore client({.port = server.port(), .secret = secret});
  client.set("key", "value");
  EXPECT_EQ(client.clone()->get("key"), "value");
  EXPECT_EQ(server.get("key"), "value");
}

TEST_F(TcpStoreSecret, AnotherOneOrNoneIsRefusedAndSaid) {
  TcpStore server({.is_server = true, .secret = "the job's"});
  const auto with = [&](const std::string& secret) {
    return message_of<StoreError>([&] { TcpStore({.port = server.port(), .secret = secret}); });
  };
  EXPECT_TRUE(contains(with("the job'S"), "refused this program's secret"));
  EXPECT_TRUE(contains(with(""), "was given none"));
  TcpStore open({.is_server = true});
  const auto text = message_of<StoreError>([&] { TcpStore({.port = open.port(), .secret = "the job's"}); });
  EXPECT_TRUE(contains(text, "asks for no secret")) << text;
  EXPECT_EQ(server.add("served all along", 1), 1);
}

// The server has called on_refusal before the client knows that it was refused.
TEST_F(TcpStoreSecret, ARefusedClientIsToldOfOnceAnAddress) {
  for (const std::size_t max_told : {64, 0}) {
    std::vector<std::string> told;
    {
      TcpStoreServer server({.bind_address = "127.0.0.1",
                             .secret = "the job's",
                             .on_refusal = [&](const std::string& sentence) { told.push_back(sentence); },
                             .max_told_addresses = max_told});
      for (int i = 0; i < 3; ++i) EXPECT_THROW(TcpStore({.port = server.port(), .secret = "mine"}), StoreError);
      TcpStore({.port = server.port(), .secret = "the job's"}).set("a client that is served", "");
    }
    std::vector<std::string> expected;
    if (max_told > 0) expected = {"a client at 127.0.0.1 was refused: its secret is another than this job's"};
    EXPECT_EQ(told, expected);
  }
}

TEST_F(TcpStoreSecret, AClientThatHasNoneIsToldOfWhenItHangsUp) {
  std::promise<std::string> told;
  TcpStore server({.is_server = true, .secret = "the job's", .on_refusal = [&](const std::string& sentence) {
                     told.set_value(sentence);
                   }});
  EXPECT_THROW(TcpStore({.port = server.port()}), StoreError);
  EXPECT_TRUE(contains(told.get_future().get(), "127.0.0.1 was refused: it gave no proof that it knows the secret"));
  EXPECT_THROW(TcpStore({.port = server.port()}), StoreError);
}

// A listener that plays the server's part without the secret: it could only guess the proof, or send back the client's.
TEST_F(TcpStoreSecret, AServerThatDoesNotKnowItIsRefused) {
  using store_internal::kChallengeBytes;
  RawSocket listener = RawSocket::bind(0);
  listener.listen();
  auto impostor = std::async(std::launch::async, [&] {
    RawSocket connection = listener.accept();
    connection.receive(store_internal::kHelloBytes);
    connection.send(store_internal::server_hello(store_internal::ServerSays::prove) +
                    std::string(kChallengeBytes, 'c'));
    const std::string said = connection.receive(kChallengeBytes + store_internal::kProofBytes);
    connection.send(store_internal::kProofAccepted + said.substr(kChallengeBytes));
    connection.is_closed_by_peer();
  });
  const auto text = message_of<StoreError>([&] { TcpStore({.port = listener.port(), .secret = "s"}); });
  EXPECT_TRUE(contains(text, "does not know this program's secret")) << text;
  impostor.get();
}

// What one client said to prove itself is of no use to the next: the server's challenge is another.
TEST_F(TcpStoreSecret, AStrangerGetsNowhere) {
  TcpStore server({.is_server = true, .secret = "s"});
  std::set<std::string> challenges;
  for (const std::string& says :
       {std::string(64, '\0'), std::string(64, 'x'),
        store_internal::encode(Request{Operation::set, 0, {"key"}, {"value"}}) + std::string(99, ' ')}) {
    RawSocket socket = RawSocket::connect(server.port());
    socket.send(store_internal::client_hello());
    EXPECT_EQ(socket.receive(store_internal::kHelloBytes),
              store_internal::server_hello(store_internal::ServerSays::prove));
    EXPECT_TRUE(challenges.insert(socket.receive(store_internal::kChallengeBytes)).second);
    socket.send(says);
    EXPECT_EQ(socket.receive(1), std::string(1, store_internal::kProofRefused));
    EXPECT_TRUE(socket.is_closed_by_peer());
  }
  EXPECT_EQ(server.num_keys(), 0);
}

TEST_F(TcpStoreSecret, WhoeverProvesNothingIsClosedInTime) {
  TcpStoreServer server({.bind_address = "127.0.0.1", .secret = "s", .hello_timeout = Milliseconds(100)});
  RawSocket slow = RawSocket::connect(server.port());
  slow.send(store_internal::client_hello() + std::string(10, 'x'));
  EXPECT_TRUE(slow.is_closed_by_peer());
}

}  // namespace
}  // namespace gradwire::tcp_store_test
