// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/store/tcp_store_server_internal.h"

#include <pthread.h>
#include <sys/socket.h>

#include <algorithm>
#include <csignal>
#include <deque>
#include <list>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "gradwire/base/error.h"
#include "gradwire/base/interrupt.h"
#include "gradwire/base/log.h"
#include "gradwire/base/mutex.h"
#include "gradwire/base/strings.h"
#include "gradwire/store/asio_internal.h"
#include "gradwire/store/key_value_map_internal.h"
#include "gradwire/store/tcp_store_listen_internal.h"
#include "gradwire/store/tcp_store_protocol_internal.h"
#include "gradwire/store/tcp_store_session_internal.h"

namespace gradwire::store_internal {

using asio::ip::tcp;

namespace {

Reply number_reply(std::int64_t number) { return {Status::ok, number, {}}; }

Reply value_reply(Store::Value value) {
  Reply reply;
  reply.values.push_back(std::move(value));
  return reply;
}

// Collects the values of a reply: at least one, as many as fit a message and the room. Small replies need no room.
class LongReply {
 public:
  explicit LongReply(std::size_t room)
      : most_(std::min<std::uint64_t>(kMaxMessageBytes, std::max(room, TcpStoreSession::kFreeBytes))) {}

  // Returns whether the value is in the reply.
  bool add(std::string_view value) {
    bytes_ += 4 + value.size();
    if (!reply.values.empty() && bytes_ > most_) return false;
    reply.values.emplace_back(value);
    return true;
  }

  Reply reply;

 private:
  const std::uint64_t most_;
  std::size_t bytes_ = 64;
};

// The values of the first keys.
Reply values_reply(const KeyValueMap& map, std::span<const std::string> keys, std::size_t room) {
  LongReply values(room);
  for (const std::string& key : keys) {
    if (!values.add(*map.find(key))) break;
  }
  return std::move(values.reply);
}

// The first keys behind `after`.
Reply keys_reply(const KeyValueMap& map, std::string_view after, std::size_t room) {
  LongReply keys(room);
  for (const std::string_view key : map.keys_after(after)) {
    if (keys.add(key)) continue;
    keys.reply.number = 1;
    break;
  }
  return std::move(keys.reply);
}

}  // namespace

// Everything but the constructor and the functions marked so runs on the event loop.
class GRADWIRE_HIDDEN TcpStoreServer::Impl final : public TcpStoreSession::Owner {
 public:
  explicit Impl(const TcpStoreServerOptions& options)
      : options_(within_descriptors(options)),
        acceptor_(listen(loop_, options)),
        retry_(loop_),
        map_(options.limits.stored_bytes) {
    for (const auto& [key, value] : options.contents) map_.set(key, value);
    accept();
  }

  std::uint16_t port() const { return acceptor_.local_endpoint().port(); }  // before run()
  const std::string& secret() const { return options_.secret; }             // from any thread

  void run() {  // the body of the thread
    for (;;) {
      try {
        loop_.run();
        return;
      } catch (const std::exception& problem) {
        log::error(concat("tcp store: ", describe(problem)));
      }
    }
  }

  void stop() {  // from any thread
    asio::post(loop_, [this] {
      // Closing alone would keep the port and the connections open in children that this process has forked.
      static_cast<void>(::shutdown(acceptor_.native_handle(), SHUT_RDWR));
      while (!sessions_.empty()) Session::Ptr(*sessions_.begin())->close();
      loop_.stop();
    });
  }

  int wait_for_workers(int count, Deadline deadline) {  // from any thread
    MutexLock lock(workers_mutex_);
    constexpr Milliseconds kLook{50};
    while (workers_ < count && !deadline.expired()) {
      throw_if_interrupted("waiting for the workers of a TcpStore");
      workers_changed_.wait_until(lock, deadline.earlier(Deadline::after(kLook)).point());
    }
    return workers_;
  }

 private:
  using Session = TcpStoreSession;

  void accept() {
    acceptor_.async_accept([this](const asio::error_code& error, tcp::socket socket) {
      if (error == asio::error::operation_aborted) return;
      if (error) return accept_later(error);
      try {
        close_on_exec(socket);
        const auto session = std::make_shared<Session>(std::move(socket), options_.secret, *this);
        sessions_.insert(session);
        unauthenticated_.push_back(session);
        session->start(Deadline::after(options_.hello_timeout));
        if (unauthenticated_.size() > options_.max_unauthenticated) Session::Ptr(unauthenticated_.front())->close();
      } catch (const std::exception& problem) {
        log::warn(concat("tcp store: lost a connection: ", problem.what()));
      }
      accept();
    });
  }

  // Out of descriptors, most likely: trying again at once would spin.
  void accept_later(const asio::error_code& error) {
    log::warn(concat("tcp store: cannot accept a connection: ", error.message()));
    retry_.expires_after(Milliseconds(100));
    retry_.async_wait([this](const asio::error_code& stopped) {
      if (!stopped) accept();
    });
  }

  bool admits() const override { return sessions_.size() - unauthenticated_.size() < options_.limits.connections; }

  bool count_bytes(std::size_t before, std::size_t after) override {
    if (after > before && after - before > room()) return false;
    message_bytes_ = message_bytes_ - before + after;
    return true;
  }

  // For messages.
  std::size_t room() const { return options_.limits.message_bytes - message_bytes_; }

  void greeted(const Session::Ptr& session) override { unauthenticated_.remove(session); }

  void refused(const std::string& address, const char* reason) override {
    const std::string sentence = concat("a client at ", address, " was refused: ", reason);
    log::warn(concat("tcp store: ", sentence));
    if (!options_.on_refusal || told_.size() >= options_.max_told_addresses) return;
    if (told_.insert(address).second) options_.on_refusal(sentence);
  }

  void closed(const Session::Ptr& session) override {
    sessions_.erase(session);
    unauthenticated_.remove(session);
    unpark(session);
  }

  void requested(const Session::Ptr& session, Request request) override {
    std::optional<Reply> reply = reply_to(request);
    if (!reply) return park(session, std::move(request), Deadline::after(Milliseconds(request.number)));
    answer(*session, request, *std::move(reply));
    for (const std::string& key : request.keys) {
      if (changes(request.operation)) wake(key);
    }
  }

  static bool changes(Operation operation) {
    return operation == Operation::set || operation == Operation::add || operation == Operation::compare_set ||
           operation == Operation::append || operation == Operation::multi_set || operation == Operation::queue_push;
  }

  void answer(Session& session, const Request& request, Reply reply) {
    if (session.reply(reply) || request.operation != Operation::queue_pop || reply.status != Status::ok) return;
    map_.put_back(request.keys[0], std::move(reply.values[0]));
  }

  // The reply, or the error as one; nothing when the request has to wait.
  std::optional<Reply> reply_to(const Request& request) {
    try {
      return serve(request);
    } catch (const StoreError& problem) {
      return Reply{Status::store_error, 0, {problem.what()}};
    }
  }
  std::optional<Reply> serve(const Request& request);
  // What a waiting request lacks.
  std::vector<std::string> missing(const Request& request) const;

  // A waiting request, kept under one of the keys it lacks.
  struct Parked {
    Session::Ptr session;
    Request request;
    Deadline deadline;
  };

  void park(const Session::Ptr& session, Request request, Deadline deadline) {
    const std::string key = missing(request).front();
    where_[session.get()] = key;
    parked_[key].push_back({session, std::move(request), deadline});
    session->hold(deadline, [this, session = session.get()] { expire(session); });
  }

  std::optional<Parked> unpark(const Session::Ptr& session) {
    const auto place = where_.find(session.get());
    if (place == where_.end()) return std::nullopt;
    auto& line = parked_[place->second];
    const auto found = std::find_if(line.begin(), line.end(), [&](const Parked& p) { return p.session == session; });
    std::optional<Parked> result;
    if (found != line.end()) {
      result = std::move(*found);
      line.erase(found);
    }
    if (line.empty()) parked_.erase(place->second);
    where_.erase(session.get());
    return result;
  }

  void expire(Session* session) {
    const auto parked = unpark(session->shared_from_this());
    if (parked) session->reply(Reply{Status::timeout, 0, missing(parked->request)});
  }

  // Serves those who wait for `key`, first come, first served.
  void wake(const std::string& key) {
    const auto found = parked_.find(key);
    if (found == parked_.end()) return;
    std::deque<Parked> line = std::move(found->second);
    parked_.erase(found);
    for (Parked& parked : line) {
      where_.erase(parked.session.get());
      try {
        if (auto reply = reply_to(parked.request)) {
          answer(*parked.session, parked.request, *std::move(reply));
        } else {
          park(parked.session, std::move(parked.request), parked.deadline);
        }
      } catch (const std::exception& problem) {
        // No memory. The others still get their answers.
        log::error(concat("tcp store: lost a connection: ", describe(problem)));
        parked.session->close();
      }
    }
  }

  const TcpStoreServerOptions options_;
  asio::io_context loop_{1};
  tcp::acceptor acceptor_;
  asio::steady_timer retry_;
  KeyValueMap map_;
  std::size_t message_bytes_ = 0;  // what sessions hold of messages
  std::unordered_set<Session::Ptr> sessions_;
  std::list<Session::Ptr> unauthenticated_;  // greeted() was not called yet; oldest first
  std::unordered_set<std::string> told_;     // addresses of which on_refusal was told
  std::unordered_map<std::string, std::deque<Parked>> parked_;
  std::unordered_map<Session*, std::string> where_;  // the key under which a session's request is parked

  Mutex workers_mutex_;
  ConditionVariable workers_changed_;
  int workers_ GRADWIRE_GUARDED_BY(workers_mutex_) = 0;
};

std::optional<Reply> TcpStoreServer::Impl::serve(const Request& request) {
  const auto& keys = request.keys;
  const auto& values = request.values;
  switch (request.operation) {
    case Operation::set:
    case Operation::multi_set:
      for (std::size_t i = 0; i < keys.size(); ++i) map_.set(keys[i], values[i]);
      return Reply();
    case Operation::get:
      if (!missing(request).empty()) return std::nullopt;
      return values_reply(map_, keys, room());
    case Operation::add:
      return number_reply(map_.add(keys[0], request.number));
    case Operation::compare_set:
      return value_reply(map_.compare_set(keys[0], values[0], values[1]).value);
    case Operation::wait:
      if (!missing(request).empty()) return std::nullopt;
      return Reply();
    case Operation::check:
      return number_reply(map_.missing(keys).empty() ? 1 : 0);
    case Operation::delete_key:
      return number_reply(map_.remove(keys[0]) ? 1 : 0);
    case Operation::num_keys:
      return number_reply(map_.num_keys());
    case Operation::list_keys:
      return keys_reply(map_, keys.empty() ? std::string_view() : keys[0], room());
    case Operation::append:
      map_.append(keys[0], values[0]);
      return Reply();
    case Operation::queue_push:
      map_.push(keys[0], values[0]);
      return Reply();
    case Operation::queue_pop:
      if (auto value = map_.pop(keys[0])) return value_reply(*std::move(value));
      return std::nullopt;
    case Operation::queue_length:
      return number_reply(map_.queue_length(keys[0]));
    case Operation::join: {
      MutexLock lock(workers_mutex_);
      workers_changed_.notify_all();
      return number_reply(++workers_);
    }
  }
  return Reply{Status::store_error, 0, {"the server does not know this operation"}};
}

std::vector<std::string> TcpStoreServer::Impl::missing(const Request& request) const {
  if (request.operation == Operation::queue_pop) return request.keys;
  return request.operation == Operation::get ? map_.missing_values(request.keys) : map_.missing(request.keys);
}

namespace {

std::shared_ptr<TcpStoreServer::Impl> make_server(const TcpStoreServerOptions& options) {
  try {
    return std::make_shared<TcpStoreServer::Impl>(options);
  } catch (const std::system_error& problem) {
    throw ResourceError(concat("TcpStore: cannot start the server: ", problem.what()));
  }
}

}  // namespace

TcpStoreServer::TcpStoreServer(const TcpStoreServerOptions& options)
    : impl_("this TcpStore's server", make_server(options)), port_(impl_.get()->port()) {
  thread_ = Thread("gw-tcp-store", [impl = impl_.get()] {
    // The program's signal handlers run on its own threads.
    sigset_t all;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, nullptr);
    impl->run();
  });
}

TcpStoreServer::~TcpStoreServer() {
  if (impl_.is_current()) impl_.get()->stop();
}

bool TcpStoreServer::has_secret(const std::string& secret) const { return impl_.get()->secret() == secret; }

void TcpStoreServer::wait_for_workers(int count, Deadline deadline) {
  const int joined = impl_.get()->wait_for_workers(count, deadline);
  if (joined >= count) return;
  throw TimeoutError(
      concat("TcpStore: ", joined, " of ", count, " ranks had connected to port ", port_,
             " when the time was up; has every rank started, with the same address, port and world size?"));
}

}  // namespace gradwire::store_internal
