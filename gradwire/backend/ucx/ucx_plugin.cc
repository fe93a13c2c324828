// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// How ranks meet: each tells the others its host, then its address, through the store; connects to all; and begins when
// it has heard of all.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <thread>
#include <utility>

#include "gradwire/backend/messages/group_channel_internal.h"
#include "gradwire/backend/plugin_internal.h"
#include "gradwire/backend/rendezvous_internal.h"
#include "gradwire/backend/ucx/admission_internal.h"
#include "gradwire/backend/ucx/interface_internal.h"
#include "gradwire/backend/ucx/session_internal.h"
#include "gradwire/base/environment.h"
#include "gradwire/base/error.h"
#include "gradwire/base/host_identity.h"
#include "gradwire/base/interrupt.h"
#include "gradwire/base/strings.h"
#include "gradwire/base/trace.h"
#include "gradwire/store/handshake_internal.h"
#include "gradwire/store/secret.h"

namespace gradwire::ucx {
namespace {

constexpr long kSilence = 2400;  // ms

constexpr Capabilities kCapabilities{.in_place_memory = false,
                                     .bitwise_equal = true,
                                     .detects_mismatch = true,
                                     .detects_death = true,
                                     .crosses_hosts = true};

std::string host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "an unnamed host";
}

// Each rank's text under `what`, by rank.
std::vector<std::string> exchange(const BackendOptions& options, const char* what, const std::string& mine,
                                  Deadline deadline) {
  const auto key = [&](int rank) { return concat("ucx/", what, "/", rank); };
  options.store->set(key(options.rank), mine);
  std::vector<std::string> all;
  for (int rank = 0; rank < options.size; ++rank) {
    all.push_back(rendezvous::await_key(*options.store, key(rank), rank, deadline));
  }
  return all;
}

// Empty where the user has told UCX itself what to use.
std::string interface_for(const BackendOptions& options, bool one_host, Deadline deadline) {
  const bool named = environment("GRADWIRE_INTERFACE").has_value();
  if (!named && (user_chose_transports() || environment("UCX_NET_DEVICES"))) return {};
  return choose_interface(*options.store, one_host, deadline);
}

// Every rank's record, by rank. The worker's address is part of this rank's.
std::vector<RankRecord> exchange_records(const BackendOptions& options, const Worker& worker, const std::string& secret,
                                         Deadline deadline) {
  const long silence = environment_integer("GRADWIRE_HEARTBEAT_MS", 100, 3'600'000).value_or(kSilence);
  const RankRecord mine{host_name(), store_internal::random_challenge(), Milliseconds(silence), worker.address()};
  std::vector<RankRecord> records;
  const std::string sealed = encode_record(mine, options.rank, secret);
  for (const std::string& text : exchange(options, "address", sealed, deadline)) {
    records.push_back(decode_record(text, static_cast<int>(records.size()), secret));
  }
  return records;
}

std::unique_ptr<UcxWire> connect(std::unique_ptr<Worker> worker, const std::vector<RankRecord>& records, int rank,
                                 const std::string& secret) {
  UcxWire::Options options;
  options.rank = rank;
  const RankRecord& own = records[static_cast<std::size_t>(rank)];
  for (std::size_t index = 0; index < records.size(); ++index) {
    const RankRecord& its = records[index];
    const int peer = static_cast<int>(index);
    options.peers.push_back(
        {its.address, token_of(secret, rank, own, peer, its), token_of(secret, peer, its, rank, own)});
    options.silence = std::max(options.silence, its.silence);
  }
  return std::make_unique<UcxWire>(std::move(worker), std::move(options));
}

// Throws the failure that a rank has announced, if there is one. The store may have gone with the rank that failed.
void throw_if_announced(Store& store) {
  try {
    rendezvous::throw_if_failed(store);
  } catch (const StoreError&) {
  }
}

[[noreturn]] void throw_unreachable(const BackendOptions& options, const RankRecord& record, int rank,
                                    const std::string& why) {
  throw_if_announced(*options.store);  // a rank that fails says so before it closes its connections
  throw PeerError(
      concat("rendezvous failed: rank ", options.rank, " cannot talk to rank ", rank, " (on ", record.host, "): ", why),
      {rank});
}

// Returns when every peer has been heard of.
void await_peers(const BackendOptions& options, UcxWire& wire, const std::vector<RankRecord>& records,
                 Deadline deadline) {
  constexpr Milliseconds kLook{200};
  Deadline next_look = Deadline::after(kLook);
  for (;;) {
    const std::uint32_t seen = wire.bell();
    while (wire.advance()) {
    }
    const std::vector<int> unheard = wire.unheard();
    if (unheard.empty()) return;
    for (int rank = 0; rank < options.size; ++rank) {
      const auto absence = wire.absence(rank);
      if (absence) throw_unreachable(options, records[static_cast<std::size_t>(rank)], rank, absence->why);
    }
    if (deadline.expired()) {
      throw TimeoutError(concat("rendezvous: by the deadline nothing had come from ", name_ranks(unheard), " to rank ",
                                options.rank, "; do the hosts reach each other (firewall, GRADWIRE_INTERFACE)?"),
                         unheard);
    }
    if (next_look.expired()) {
      rendezvous::throw_if_failed(*options.store);
      throw_if_interrupted("rendezvous");
      const std::vector<int> dead = rendezvous::dead_ranks(*options.store, unheard);
      if (!dead.empty()) rendezvous::throw_dead(*options.store, dead);
      next_look = Deadline::after(kLook);
    }
    // Short: while connections are made, UCX has work at times for which it wakes nobody.
    wire.sleep(seen, std::chrono::milliseconds(1));
  }
}

// Whether every rank of this host has a processor of its own.
bool may_spin(const std::vector<std::string>& hosts, int rank) {
  const auto here = std::count(hosts.begin(), hosts.end(), hosts[static_cast<std::size_t>(rank)]);
  return static_cast<unsigned>(here) <= std::thread::hardware_concurrency();
}

std::shared_ptr<messages::Group> make_group(const BackendOptions& options, std::unique_ptr<UcxWire> wire,
                                            const std::vector<RankRecord>& records, bool spins) {
  std::vector<std::string> names;
  Milliseconds silence{0};
  std::vector<int> peers;
  for (const RankRecord& record : records) {
    peers.push_back(static_cast<int>(peers.size()));
    names.push_back(record.host);
    silence = std::max(silence, record.silence);
  }
  const auto session = std::make_shared<Session>(std::move(wire), options.rank, std::move(names), silence, spins);
  auto group = std::make_shared<messages::Group>(
      messages::Group::Options{.backend = "ucx",
                               .engine = session->engine(),
                               .keeps = session,
                               .first_channel = 0,
                               .rank = options.rank,
                               .size = options.size,
                               .failure_of = [raw = session.get()](int rank) { return raw->loss_of(rank); }});
  group->place(std::move(peers));
  return group;
}

std::unique_ptr<Backend> make(const BackendOptions& options) {
  trace::point("rendezvous.begin", options.rank);
  const Deadline deadline = Deadline::after(options.timeout);
  const std::string secret = secret_from_environment([](const char* name) { return environment(name); });
  const std::vector<std::string> hosts = exchange(options, "host", host_identity(), deadline);
  const bool one_host = std::all_of(hosts.begin(), hosts.end(), [&](const auto& host) { return host == hosts[0]; });
  auto worker = std::make_unique<Worker>(interface_for(options, one_host, deadline));
  const std::vector<RankRecord> records = exchange_records(options, *worker, secret, deadline);
  std::unique_ptr<UcxWire> wire = connect(std::move(worker), records, options.rank, secret);
  std::unique_ptr<Backend> backend;
  try {
    await_peers(options, *wire, records, deadline);
    trace::point("rendezvous.connected", options.rank);
    wire->watch();
    UcxWire& connected = *wire;  // the backend's from here on
    backend =
        std::make_unique<messages::GroupBackend>(
        make_group(options, std::move(wire), records, may_spin(hosts, options.rank)), kCapabilities);
    backend->channel().barrier({deadline, {}});
    connected.close_door();
    return backend;
  } catch (const PeerError& error) {
    rendezvous::announce_failure(*options.store, options.rank, error);
    // A rank that gave up because of another one has closed its connections: the first failure is the cause of all.
    throw_if_announced(*options.store);
    throw;
  } catch (const std::exception& error) {
    // Before the connections are closed: the others look for the reason when they see that.
    rendezvous::announce_failure(*options.store, options.rank, error);
    throw;
  }
}

}  // namespace
}  // namespace gradwire::ucx

extern "C" {
extern const gradwire::plugin::Entry gradwire_ucx_plugin;
const gradwire::plugin::Entry gradwire_ucx_plugin{GRADWIRE_VERSION, &gradwire::ucx::make};
}
