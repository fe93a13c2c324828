// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/store/tcp_store.h"

#include <algorithm>
#include <atomic>
#include <iterator>
#include <map>
#include <optional>
#include <utility>

#include "gradwire/base/address.h"
#include "gradwire/base/error.h"
#include "gradwire/base/mutex.h"
#include "gradwire/base/strings.h"
#include "gradwire/store/handshake_internal.h"
#include "gradwire/store/key_value_map_internal.h"
#include "gradwire/store/process_bound_internal.h"
#include "gradwire/store/secret.h"
#include "gradwire/store/tcp_store_connection_internal.h"
#include "gradwire/store/tcp_store_server_internal.h"

namespace gradwire {

using store_internal::Operation;
using store_internal::Reply;
using store_internal::Request;
using store_internal::require_key;
using store_internal::require_keys;
using store_internal::require_value;
using store_internal::Status;
using store_internal::TcpStoreConnection;
using store_internal::TcpStoreServer;

namespace {

constexpr Milliseconds kAnswerGrace{1000};
constexpr std::size_t kMaxIdleConnections = 8;

// The connections of one handle that no call uses at the moment.
struct Pool {
  Mutex mutex;
  std::vector<std::unique_ptr<TcpStoreConnection>> idle GRADWIRE_GUARDED_BY(mutex);
};

bool is_loopback(const std::string& host) { return host == "localhost" || host == "::1" || host.starts_with("127."); }

// Where the server listens; empty: on all interfaces.
std::string address_of_server(const TcpStoreOptions& options) {
  if (!options.bind_address.empty() || !is_loopback(options.host)) return options.bind_address;
  return options.host == "localhost" ? "127.0.0.1" : options.host;
}

std::unique_ptr<TcpStoreServer> start_server(const TcpStoreOptions& options) {
  return std::make_unique<TcpStoreServer>(
      store_internal::TcpStoreServerOptions{.bind_address = address_of_server(options),
                                            .port = options.port,
                                            .reuse_port = options.reuse_port,
                                            .secret = options.secret,
                                            .limits = options.limits,
                                            .contents = options.contents,
                                            .on_refusal = options.on_refusal});
}

// The servers of stores with multi_tenant.
class SharedServers {
 public:
  using Place = std::pair<std::string, std::uint16_t>;  // address and port

  // Lives as long as the process: a store may end after the static objects.
  static SharedServers& instance() {
    static SharedServers& servers = *std::make_unique<SharedServers>().release();
    return servers;
  }

  std::shared_ptr<TcpStoreServer> share(const TcpStoreOptions& options) GRADWIRE_EXCLUDES(mutex_) {
    std::shared_ptr<TcpStoreServer> server;  // goes outside of the lock: it may be the last one
    const std::string address = address_of_server(options);
    MutexLock lock(mutex_);
    for (;;) {
      const auto found = by_place_.find({address, options.port});
      // A forked child has only copies of its parent's.
      if (found == by_place_.end() || !found->second.owner.is_current()) return add(options, address);
      server = found->second.server.lock();
      if (server != nullptr) break;
      ended_.wait(lock);  // the last handle has gone, and takes the server along
    }
    if (server->has_secret(options.secret)) return server;
    throw StoreError(concat("TcpStore: port ", options.port,
                            " is served by another store of this process, with another secret; give both stores the "
                            "same secret, or another port"));
  }

 private:
  struct Entry {
    std::weak_ptr<TcpStoreServer> server;
    OwnerProcess owner;
  };

  std::shared_ptr<TcpStoreServer> add(const TcpStoreOptions& options, const std::string& address)
      GRADWIRE_REQUIRES(mutex_) {
    std::unique_ptr<TcpStoreServer> made = start_server(options);
    const Place place{address, made->port()};
    std::shared_ptr<TcpStoreServer> server(made.release(), [this, place](TcpStoreServer* last) { end(last, place); });
    by_place_.insert_or_assign(place, Entry{server, {}});
    return server;
  }

  void end(TcpStoreServer* last, const Place& place) GRADWIRE_EXCLUDES(mutex_) {
    std::unique_ptr<TcpStoreServer> server(last);
    if (!server->is_current()) return;  // the lock may be one that a forked child cannot get
    server.reset();
    MutexLock lock(mutex_);
    by_place_.erase(place);
    ended_.notify_all();
  }

  Mutex mutex_;
  ConditionVariable ended_;
  std::map<Place, Entry> by_place_ GRADWIRE_GUARDED_BY(mutex_);
};

void require_options(const TcpStoreOptions& options) {
  if (options.host.empty()) throw InvalidArgument("TcpStore: the host is empty");
  if (options.port == 0 && !options.is_server) {
    throw InvalidArgument(
        "TcpStore: port 0 means any free port and is for the server only; a client needs the server's port");
  }
  if (options.world_size != -1 && options.world_size < 1) {
    throw InvalidArgument(concat("TcpStore: a world size of ", options.world_size, " is neither -1 nor positive"));
  }
  for (const auto& [key, value] : options.contents) {
    require_key("contents", key);
    require_value("contents", value);
  }
  if (options.secret.size() > kMaxSecretBytes) {
    throw InvalidArgument(
        concat("TcpStore: a secret of ", options.secret.size(), " bytes; the longest has ", kMaxSecretBytes));
  }
  if (options.limits.connections == 0) throw InvalidArgument("TcpStore: a limit of 0 connections serves nobody");
  store_internal::require_timeout("TcpStore", options.timeout);
}

// "get of 'key'"
std::string describe(const char* operation, const Request& request) {
  return request.keys.empty() ? operation : concat(operation, " of ", store_internal::quote_list(request.keys));
}

std::vector<std::string> copy(std::span<const std::string> list) { return {list.begin(), list.end()}; }

}  // namespace

class TcpStore::Impl {
 public:
  Impl(std::string host, std::uint16_t port, std::string secret, Milliseconds timeout,
       std::shared_ptr<TcpStoreServer> server)
      : host(std::move(host)), port(port), secret(std::move(secret)), timeout(timeout), server(std::move(server)) {}

  // Makes the first connection.
  void connect(Deadline deadline, TcpStoreConnection::Retry retry) {
    give_back(std::make_unique<TcpStoreConnection>(host, port, secret, deadline, retry));
  }

  // Sends a request and returns the reply to it, an error as an exception. `wait` is how long the server may hold the
  // reply back.
  Reply call(const char* operation, const Request& request, std::optional<Milliseconds> wait = std::nullopt) {
    return call_until(answer_deadline(wait), operation, request, wait);
  }

  // The same with a deadline for the reply.
  Reply call_until(Deadline deadline, const char* operation, const Request& request,
                   std::optional<Milliseconds> wait = std::nullopt) {
    if (store_internal::body_bytes(request) > store_internal::kMaxMessageBytes) {
      throw InvalidArgument(concat(operation, ": these arguments have ", store_internal::body_bytes(request),
                                   " bytes; one call takes at most ", store_internal::kMaxMessageBytes));
    }
    Reply reply;
    try {
      std::unique_ptr<TcpStoreConnection> connection = take(deadline);
      reply = connection->exchange(request, deadline);
      give_back(std::move(connection));
    } catch (const TimeoutError& problem) {
      throw TimeoutError(concat(problem.what(), " (", describe(operation, request), ")"));
    } catch (const StoreError& problem) {
      throw StoreError(concat(problem.what(), " (", describe(operation, request), ")"));
    }
    if (reply.status == Status::timeout) {
      throw TimeoutError(store_internal::missing_message(name(), operation, reply.values, wait.value_or(timeout)));
    }
    if (reply.status == Status::store_error) {
      throw StoreError(concat(name(), ": ", reply.values.empty() ? "unnamed error" : reply.values.front()));
    }
    return reply;
  }

  // As call(), for an operation that is answered with one value.
  Value call_for_value(const char* operation, const Request& request, std::optional<Milliseconds> wait = std::nullopt) {
    Reply reply = call(operation, request, wait);
    if (reply.values.size() != 1) fail_strange(operation);
    return std::move(reply.values.front());
  }

  std::vector<Value> values_of(const char* operation, std::span<const std::string> keys) {
    require_keys(operation, keys);
    std::vector<Value> values;
    const Deadline deadline = Deadline::after(timeout);
    while (values.size() < keys.size()) {
      // The first request waits for all keys; if a message cannot hold all values, the next ones fetch the rest.
      const auto rest = keys.subspan(values.size());
      const Milliseconds limit = values.empty() ? timeout.load() : deadline.remaining();
      Reply reply = call(
          operation, {.operation = Operation::get, .number = limit.count(), .keys = copy(rest), .values = {}}, limit);
      if (reply.values.empty() || reply.values.size() > rest.size()) fail_strange(operation);
      std::move(reply.values.begin(), reply.values.end(), std::back_inserter(values));
    }
    return values;
  }

  Value pop(const char* operation, const std::string& queue, Milliseconds limit) {
    require_key(operation, queue);
    store_internal::require_timeout(operation, limit);
    return call_for_value(
        operation, {.operation = Operation::queue_pop, .number = limit.count(), .keys = {queue}, .values = {}}, limit);
  }

  [[noreturn]] void fail_strange(const char* operation) const {
    throw StoreError(concat(name(), ": the server's reply to ", operation, " does not fit the request"));
  }

  std::string name() const { return concat("TcpStore ", host_and_port(host, port)); }

  const std::string host;
  const std::uint16_t port;
  const std::string secret;
  std::atomic<Milliseconds> timeout;
  const std::shared_ptr<TcpStoreServer> server;

 private:
  Deadline answer_deadline(std::optional<Milliseconds> wait) const {
    if (!wait) return Deadline::after(std::max(timeout.load(), kAnswerGrace));
    return Deadline::after(*wait > Milliseconds::max() - kAnswerGrace ? *wait : *wait + kAnswerGrace);
  }

  std::unique_ptr<TcpStoreConnection> take(Deadline deadline) {
    Pool& pool = *pool_.get();
    {
      MutexLock lock(pool.mutex);
      if (!pool.idle.empty()) {
        auto connection = std::move(pool.idle.back());
        pool.idle.pop_back();
        return connection;
      }
    }
    // The server was there once: if nobody listens now, it is gone for good.
    return std::make_unique<TcpStoreConnection>(host, port, secret, deadline, TcpStoreConnection::Retry::no);
  }

  void give_back(std::unique_ptr<TcpStoreConnection> connection) {
    Pool& pool = *pool_.get();
    MutexLock lock(pool.mutex);
    if (pool.idle.size() < kMaxIdleConnections) pool.idle.push_back(std::move(connection));
  }

  store_internal::ProcessBound<Pool> pool_{"this TcpStore", std::make_shared<Pool>()};
};

TcpStore::TcpStore(TcpStoreOptions options) {
  require_options(options);
  if (!options.secret.empty()) store_internal::require_secrets();
  const Deadline deadline = Deadline::after(options.timeout);
  std::shared_ptr<TcpStoreServer> server;
  if (options.is_server)
    server = options.multi_tenant ? SharedServers::instance().share(options) : start_server(options);
  const std::uint16_t port = server != nullptr ? server->port() : options.port;
  impl_ = std::make_unique<Impl>(std::move(options.host), port, std::move(options.secret), options.timeout,
                                 std::move(server));
  impl_->connect(deadline, TcpStoreConnection::Retry::yes);
  if (options.world_size < 1 || !options.wait_for_workers) return;
  impl_->call_until(deadline, "join", {.operation = Operation::join, .keys = {}, .values = {}});
  if (impl_->server != nullptr) impl_->server->wait_for_workers(options.world_size, deadline);
}

TcpStore::TcpStore(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

TcpStore::~TcpStore() = default;

const std::string& TcpStore::host() const noexcept { return impl_->host; }

std::uint16_t TcpStore::port() const noexcept { return impl_->port; }

void TcpStore::set(const std::string& key, const Value& value) {
  require_key("set", key);
  require_value("set", value);
  impl_->call("set", {.operation = Operation::set, .keys = {key}, .values = {value}});
}

Store::Value TcpStore::get(const std::string& key) {
  return std::move(impl_->values_of("get", std::span(&key, 1)).front());
}

std::int64_t TcpStore::add(const std::string& key, std::int64_t amount) {
  require_key("add", key);
  return impl_->call("add", {.operation = Operation::add, .number = amount, .keys = {key}, .values = {}}).number;
}

Store::Value TcpStore::compare_set(const std::string& key, const Value& expected, const Value& desired) {
  require_key("compare_set", key);
  require_value("compare_set", expected);
  require_value("compare_set", desired);
  return impl_->call_for_value("compare_set",
                               {.operation = Operation::compare_set, .keys = {key}, .values = {expected, desired}});
}

void TcpStore::wait(std::span<const std::string> keys, Milliseconds timeout) {
  require_keys("wait", keys);
  store_internal::require_timeout("wait", timeout);
  impl_->call("wait", {.operation = Operation::wait, .number = timeout.count(), .keys = copy(keys), .values = {}},
              timeout);
}

bool TcpStore::check(std::span<const std::string> keys) {
  require_keys("check", keys);
  return impl_->call("check", {.operation = Operation::check, .keys = copy(keys), .values = {}}).number != 0;
}

bool TcpStore::delete_key(const std::string& key) {
  require_key("delete_key", key);
  return impl_->call("delete_key", {.operation = Operation::delete_key, .keys = {key}, .values = {}}).number != 0;
}

std::int64_t TcpStore::num_keys() {
  return impl_->call("num_keys", {.operation = Operation::num_keys, .keys = {}, .values = {}}).number;
}

std::vector<std::string> TcpStore::list_keys() {
  std::vector<std::string> all;
  for (bool more = true; more;) {
    Request request{.operation = Operation::list_keys, .keys = {}, .values = {}};
    if (!all.empty()) request.keys = {all.back()};
    Reply reply = impl_->call("list_keys", request);
    more = reply.number != 0;
    const bool goes_on = reply.values.empty() ? !more : all.empty() || reply.values.front() > all.back();
    if (!goes_on) impl_->fail_strange("list_keys");
    std::move(reply.values.begin(), reply.values.end(), std::back_inserter(all));
  }
  return all;
}

void TcpStore::append(const std::string& key, const Value& value) {
  require_key("append", key);
  require_value("append", value);
  impl_->call("append", {.operation = Operation::append, .keys = {key}, .values = {value}});
}

std::vector<Store::Value> TcpStore::multi_get(std::span<const std::string> keys) {
  return impl_->values_of("multi_get", keys);
}

void TcpStore::multi_set(std::span<const std::string> keys, std::span<const Value> values) {
  store_internal::require_pairs("multi_set", keys, values);
  Request request{.operation = Operation::multi_set, .keys = {}, .values = {}};
  std::size_t bytes = store_internal::body_bytes(request);
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const std::size_t more = 8 + keys[i].size() + values[i].size();
    if (bytes + more > store_internal::kMaxMessageBytes) {
      impl_->call("multi_set", request);
      request.keys.clear();
      request.values.clear();
      bytes = store_internal::body_bytes(request);
    }
    request.keys.push_back(keys[i]);
    request.values.push_back(values[i]);
    bytes += more;
  }
  impl_->call("multi_set", request);
}

void TcpStore::queue_push(const std::string& queue, const Value& value) {
  require_key("queue_push", queue);
  require_value("queue_push", value);
  impl_->call("queue_push", {.operation = Operation::queue_push, .keys = {queue}, .values = {value}});
}

Store::Value TcpStore::queue_pop(const std::string& queue) { return impl_->pop("queue_pop", queue, timeout()); }

Store::Value TcpStore::queue_pop_within(const std::string& queue, Milliseconds limit) {
  return impl_->pop("queue_pop_within", queue, limit);
}

std::int64_t TcpStore::queue_length(const std::string& queue) {
  require_key("queue_length", queue);
  return impl_->call("queue_length", {.operation = Operation::queue_length, .keys = {queue}, .values = {}}).number;
}

Milliseconds TcpStore::timeout() const { return impl_->timeout.load(std::memory_order_relaxed); }

void TcpStore::set_timeout(Milliseconds timeout) {
  store_internal::require_timeout("set_timeout", timeout);
  impl_->timeout.store(timeout, std::memory_order_relaxed);
}

std::shared_ptr<Store> TcpStore::clone() {
  auto copied = std::make_unique<Impl>(impl_->host, impl_->port, impl_->secret, timeout(), impl_->server);
  copied->connect(Deadline::after(std::max(timeout(), kAnswerGrace)), TcpStoreConnection::Retry::no);
  return std::make_shared<TcpStore>(std::move(copied));
}

}  // namespace gradwire
