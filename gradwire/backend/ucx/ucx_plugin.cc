// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// How ranks meet. Each publishes its sealed address in the store, takes from there the addresses of its partners
// (meeting_internal.h), and connects with these. When it has heard of them all, the ranks tell each other the other
// addresses over the wire: so a rank sends O(log N) messages and begins with O(log N) connections. Addresses from the
// wire bear the same seal.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <numeric>
#include <string_view>
#include <thread>
#include <utility>

#include "gradwire/backend/descriptor_limit_internal.h"
#include "gradwire/backend/messages/group_channel_internal.h"
#include "gradwire/backend/plugin_internal.h"
#include "gradwire/backend/rendezvous_internal.h"
#include "gradwire/backend/ucx/admission_internal.h"
#include "gradwire/backend/ucx/interface_internal.h"
#include "gradwire/backend/ucx/link_internal.h"
#include "gradwire/backend/ucx/meeting_internal.h"
#include "gradwire/backend/ucx/partners_internal.h"
#include "gradwire/backend/ucx/reach_internal.h"
#include "gradwire/backend/ucx/session_internal.h"
#include "gradwire/base/environment.h"
#include "gradwire/base/error.h"
#include "gradwire/base/host_identity.h"
#include "gradwire/base/interrupt.h"
#include "gradwire/base/os_handles.h"
#include "gradwire/base/process.h"
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

// An interface without a cable is up and does not run: so it is not waited for to the deadline.
constexpr Milliseconds kLinkComesUp{5000};

std::string host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "an unnamed host";
}

// Empty where the user has told UCX itself what to use.
std::string interface_for(const BackendOptions& options, bool one_host, Deadline deadline) {
  const bool named = environment("GRADWIRE_INTERFACE").has_value();
  if (!named && (user_chose_transports() || environment("UCX_NET_DEVICES"))) return {};
  std::string interface = choose_interface(*options.store, one_host, deadline);
  await_link(interface, deadline.earlier(Deadline::after(kLinkComesUp)));  // where it does not, UCX says why
  return interface;
}

// Whether there is a processor for each rank of this host. A part of a group may have one rank of many on a host, so
// the most that any group of this process has had on this host count.
bool has_processor_for_each(int ranks_here) {
  static std::atomic<int> most{1};
  int known = most.load();
  while (known < ranks_here && !most.compare_exchange_weak(known, ranks_here)) {
  }
  return static_cast<unsigned>(std::max(known, ranks_here)) <= std::thread::hardware_concurrency();
}

PeerOptions peer_options(const std::string& secret, int rank, const RankRecord& own, int peer, const RankRecord& its) {
  return {its.address, token_of(secret, rank, own, peer, its), token_of(secret, peer, its, rank, own), its.host};
}

std::unique_ptr<UcxWire> connect(std::unique_ptr<Worker> worker, const std::vector<RankRecord>& records,
                                 std::vector<int> partners, int rank, const std::string& secret) {
  UcxWire::Options options;
  options.rank = rank;
  options.peers.resize(records.size());
  const RankRecord& own = records[static_cast<std::size_t>(rank)];
  options.silence = options.shortest_silence = own.silence;
  for (const int partner : partners) {
    const RankRecord& its = records[static_cast<std::size_t>(partner)];
    options.peers[static_cast<std::size_t>(partner)] = peer_options(secret, rank, own, partner, its);
    options.silence = std::max(options.silence, its.silence);
    options.shortest_silence = std::min(options.shortest_silence, its.silence);
  }
  if (records.size() > static_cast<std::size_t>(kFullMeshRanks)) {
    options.partners = std::move(partners);
  } else {
    options.shortest_silence = options.silence;  // all ranks know all records, so all wait as long
  }
  return std::make_unique<UcxWire>(std::move(worker), std::move(options));
}

// The wire gets to know all ranks, and how long the most patient of them waits for signs of life. Nobody sends to a
// rank that is no partner before the barrier that follows.
void learn_the_rest(messages::GroupChannel& channel, UcxWire& wire, const std::string& sealed,
                    const std::string& secret, Deadline deadline) {
  const CallOptions options{deadline, {}};
  auto longest = static_cast<std::int64_t>(sealed.size());
  channel.all_reduce(&longest, 1, DType::i64, ReduceOp::max(), options);
  // Each record behind its length.
  const std::size_t stride = sizeof(std::uint64_t) + static_cast<std::size_t>(longest);
  std::string mine(stride, '\0');
  const std::uint64_t bytes = sealed.size();
  std::memcpy(mine.data(), &bytes, sizeof(bytes));
  std::memcpy(mine.data() + sizeof(bytes), sealed.data(), sealed.size());
  std::string all(stride * static_cast<std::size_t>(channel.size()), '\0');
  channel.tell_all(mine.data(), all.data(), stride, options);
  const RankRecord own = decode_record(sealed, channel.rank(), secret);
  Milliseconds silence = own.silence;
  for (int rank = 0; rank < channel.size(); ++rank) {
    if (rank == channel.rank()) continue;
    const std::string_view slot = std::string_view(all).substr(static_cast<std::size_t>(rank) * stride, stride);
    std::uint64_t length = 0;
    std::memcpy(&length, slot.data(), sizeof(length));
    const RankRecord its = decode_record(std::string(slot.substr(sizeof(length), length)), rank, secret);
    wire.introduce(rank, peer_options(secret, channel.rank(), own, rank, its));
    silence = std::max(silence, its.silence);
  }
  wire.extend_silence(silence);
}

// Throws the failure that a rank has announced, if there is one. The store may have gone with the rank that failed.
void throw_if_announced(Store& store) {
  try {
    rendezvous::throw_if_failed(store);
  } catch (const StoreError&) {
  }
}

// `was_heard`: something had come of the rank before. Then it may only have stood still, or have ended.
[[noreturn]] void throw_absent(const BackendOptions& options, const RankRecord& record, int rank, bool was_heard,
                               const std::string& why) {
  throw_if_announced(*options.store);  // a rank that fails says so before it closes its connections
  const std::string text =
      concat("rendezvous failed: rank ", options.rank, " cannot talk to rank ", rank, " (on ", record.host, "): ", why);
  if (was_heard) throw PeerError(text, {rank});
  throw UnreachableError(text, {rank});
}

[[noreturn]] void throw_silent(const BackendOptions& options, const std::vector<RankRecord>& records,
                               const std::vector<int>& silent, Milliseconds tried) {
  std::vector<std::string> names;
  for (const int rank : silent)
    names.push_back(concat("rank ", rank, " (on ", records[static_cast<std::size_t>(rank)].host, ")"));
  throw UnreachableError(concat("rendezvous failed: rank ", options.rank, " cannot talk to ", join(names, ", "),
                                ": nothing has come from there for ", tried.count(),
                                " ms; do the hosts reach each other in both directions (cables, firewall, "
                                "GRADWIRE_INTERFACE)?"),
                         silent);
}

// Whether a rank has given up because it does not reach another one. The store may have gone with that rank.
bool another_has_given_up(Store& store) {
  try {
    return rendezvous::someone_is_unreachable(store);
  } catch (const StoreError&) {
    return true;
  }
}

// Returns when every partner has been heard of.
void await_partners(const BackendOptions& options, UcxWire& wire, const std::vector<RankRecord>& records,
                    const std::vector<int>& partners, Deadline deadline) {
  constexpr Milliseconds kLook{200};
  Deadline next_look = Deadline::after(kLook);
  Reach reach(options.size <= kFullMeshRanks, wire.silence());
  for (;;) {
    const std::uint32_t seen = wire.bell();
    while (wire.advance()) {
    }
    const std::vector<int> unheard = wire.unheard();
    if (unheard.empty()) return;
    reach.look(Deadline::Clock::now());
    for (const int rank : partners) {
      const auto absence = wire.absence(rank);
      if (!absence) continue;
      const bool was_heard = std::find(unheard.begin(), unheard.end(), rank) == unheard.end();
      // It may have ended because one that it heard, and this rank did not, has given up.
      if (was_heard && reach.is_nearly_over() && another_has_given_up(*options.store))
        throw_silent(options, records, unheard, reach.tried());
      throw_absent(options, records[static_cast<std::size_t>(rank)], rank, was_heard, absence->why);
    }
    if (deadline.expired()) {
      throw TimeoutError(concat("rendezvous: by the deadline nothing had come from ", name_ranks(unheard), " to rank ",
                                options.rank, "; do the hosts reach each other (firewall, GRADWIRE_INTERFACE)?"),
                         unheard);
    }
    if (next_look.expired() || reach.is_over()) {
      const bool another_gave_up = reach.is_nearly_over() && another_has_given_up(*options.store);
      if (!another_gave_up) rendezvous::throw_if_failed(*options.store);
      if (another_gave_up || reach.is_over()) throw_silent(options, records, unheard, reach.tried());
      throw_if_interrupted("rendezvous");
      const std::vector<int> dead = rendezvous::dead_ranks(*options.store, unheard);
      if (!dead.empty()) rendezvous::throw_dead(*options.store, dead);
      next_look = Deadline::after(kLook);
    }
    // Short: while connections are made, UCX has work at times for which it wakes nobody.
    wire.sleep(seen, std::chrono::milliseconds(1));
  }
}

std::shared_ptr<messages::Group> make_group(const BackendOptions& options, std::unique_ptr<UcxWire> wire, bool spins) {
  std::vector<int> peers(static_cast<std::size_t>(options.size));
  std::iota(peers.begin(), peers.end(), 0);
  const auto session = std::make_shared<Session>(std::move(wire), options.rank, spins);
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

// Where UCX is refused memory for a connection, it tells nobody, and nothing comes from the rank.
void require_memory(const BackendOptions& options) {
  constexpr std::size_t kOfUcx = std::size_t{20} << 20;
  try {
    static_cast<void>(Mapping::anonymous(kOfUcx));
  } catch (const ResourceError& refused) {
    throw ResourceError(concat("rendezvous failed: rank ", options.rank, " of ", options.size, " is out of memory: ",
                               refused.what(), "; UCX needs that for its connections: raise the limit (ulimit -v)"));
  }
}

// UCX ends the process where the machine refuses it a descriptor or a thread while it starts.
void require_room(const BackendOptions& options, std::size_t partners) {
  constexpr std::size_t kOfUcx = 16;  // epoll, pipes, timers, the socket that listens, and what it opens for a moment
  constexpr std::size_t kOfPartner = 3;  // a connection from each side, and one that may be tried again
  internal::require_descriptors(options.rank, options.size, kOfUcx + kOfPartner * partners);
  Thread("gradwire-ucx", [] {}).join();
}

std::unique_ptr<Backend> make(const BackendOptions& options) {
  trace::point("rendezvous.begin", options.rank);
  const Deadline deadline = Deadline::after(options.timeout);
  const std::string secret = secret_from_environment([](const char* name) { return environment(name); });
  const long silence = environment_integer("GRADWIRE_HEARTBEAT_MS", 100, 3'600'000).value_or(kSilence);
  const std::vector<int> partners = partners_of(options.rank, options.size);
  require_room(options, partners.size());
  require_memory(options);
  const int here = count_ranks_on(host_identity(), options, partners, deadline);
  auto worker = std::make_unique<Worker>(interface_for(options, here == options.size, deadline));
  const std::string sealed =
      encode_record({host_name(), store_internal::random_challenge(), Milliseconds(silence), worker->address()},
                    options.rank, secret);
  const std::vector<RankRecord> records = exchange_records(options, partners, sealed, secret, deadline);
  std::unique_ptr<UcxWire> wire = connect(std::move(worker), records, partners, options.rank, secret);
  std::unique_ptr<messages::GroupBackend> backend;
  try {
    wire->watch();
    await_partners(options, *wire, records, partners, deadline);
    trace::point("rendezvous.connected", options.rank);
    UcxWire& connected = *wire;  // the backend's from here on
    const bool spins = has_processor_for_each(here);
    backend = std::make_unique<messages::GroupBackend>(make_group(options, std::move(wire), spins), kCapabilities);
    const bool is_full_mesh = options.size <= kFullMeshRanks;
    if (!is_full_mesh) learn_the_rest(backend->channel(), connected, sealed, secret, deadline);
    // A rank that was refused, as one whose number another one has, is no partner of this one. Before the barrier,
    // after which the store may end with another rank.
    rendezvous::throw_if_failed(*options.store);
    backend->channel().barrier({deadline, {}});
    if (is_full_mesh) connected.close_door();  // else ranks connect later, too
    return backend;
  } catch (const UnreachableError& error) {
    rendezvous::announce_failure(*options.store, options.rank, error);
    throw;  // each rank knows itself whom it does not reach
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
