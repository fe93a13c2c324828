// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Ranks of the backend ucx whose network is about to break: cut_ranks calls|messages SIZE HOST PORT RANK... Starts the
// ranks RANK... as child processes; rank 0 runs the store at HOST:PORT.
//
// calls: the ranks do collectives until these fail.
// messages: rank 1 exchanges a message with each rank that is none of its partners, and each of them awaits another one
// of it, and it one of the first of them, until these fail. Then all its partners exchange messages with both.
//
// Each rank prints "rank 3: PeerError [17,18] at 123456 ms: ...", by the clock of the machine, and what the partners
// exchanged: "rank 3: fine".
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "gradwire/backend/registry.h"
#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "gradwire/store/prefix_store.h"
#include "gradwire/store/tcp_store.h"

namespace {

using namespace gradwire;
using std::chrono::seconds;

constexpr seconds kDeadline{60};
constexpr int kLonely = 1;  // the rank whose partners are all on other hosts than the rest

CallOptions options() { return {Deadline::after(kDeadline), {}}; }

std::shared_ptr<Store> open_store(const std::string& host, int port, int rank, int size) {
  TcpStoreOptions store;
  store.host = host;
  store.port = static_cast<std::uint16_t>(port);
  store.is_server = rank == 0;
  store.world_size = size;
  store.wait_for_workers = false;
  store.timeout = kDeadline;
  return std::make_shared<TcpStore>(store);
}

// As the ranks of a wide world choose them: see partners_of().
bool is_partner_of_lonely(int rank, int size) {
  for (int distance = 1; distance < size; distance *= 2) {
    if ((kLonely + distance) % size == rank || (rank + distance) % size == kLonely) return true;
  }
  return false;
}

void say(int rank, const std::string& what) {
  std::printf("%s\n", concat("rank ", rank, ": ", what).c_str());
  std::fflush(stdout);
}

// Runs `call`, which is to fail, and prints how.
void fail(int rank, const std::function<void()>& call) {
  const auto now = [] {
    return std::chrono::duration_cast<Milliseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
  };
  try {
    call();
    say(rank, "nothing failed");
  } catch (const PeerError& error) {
    say(rank, concat("PeerError [", join(error.peers()), "] at ", now(), " ms: ", error.what()));
  } catch (const std::exception& error) {
    say(rank, concat(describe(error), " at ", now(), " ms"));
  }
}

// Short and long, so that ranks that are no partners need each other, too.
void do_calls(Channel& channel) {
  const auto ranks = static_cast<std::size_t>(channel.size());
  for (int round = 0;; ++round) {
    const std::size_t count = round % 2 == 0 ? 10 : 10'000;
    std::vector<float> data(count * ranks, 1.0F);
    std::vector<float> all(count * ranks);
    std::vector<ConstSlice> inputs;
    std::vector<Slice> outputs;
    for (std::size_t r = 0; r < ranks; ++r) {
      inputs.push_back({data.data() + r * count, count});
      outputs.push_back({all.data() + r * count, count});
    }
    channel.all_reduce(data.data(), data.size(), DType::f32, ReduceOp::max(), options());
    channel.all_to_all(inputs, outputs, DType::f32, options());
    channel.barrier(options());
    if (channel.rank() == 0 && round == 10) say(0, "calling");
  }
}

void exchange(Channel& channel, int other, std::uint32_t tag) {
  char sent = 'x';
  char taken = 0;
  const auto receive = channel.irecv(&taken, 1, other, tag);
  const auto send = channel.isend(&sent, 1, other, tag);
  receive->wait(Deadline::after(kDeadline));
  send->wait(Deadline::after(kDeadline));
}

void do_messages(Channel& channel, Store& store) {
  const int rank = channel.rank();
  std::vector<int> partners, rest;
  for (int r = 0; r < channel.size(); ++r) {
    if (r != kLonely) (is_partner_of_lonely(r, channel.size()) ? partners : rest).push_back(r);
  }
  const bool is_partner = std::find(partners.begin(), partners.end(), rank) != partners.end();
  const std::string noticed = "all have noticed";
  if (!is_partner) {
    for (const int other : rank == kLonely ? rest : std::vector<int>{kLonely}) exchange(channel, other, 1);
    char taken = 0;
    const auto receive = channel.irecv(&taken, 1, rank == kLonely ? rest[0] : kLonely, 2);
    say(rank, "waits");
    fail(rank, [&] { receive->wait(Deadline::after(kDeadline)); });
    if (store.add("noticed", 1) == static_cast<int>(rest.size()) + 1) store.set(noticed, "");
  }
  store.wait({&noticed, 1}, kDeadline);
  const std::vector<int> ends{kLonely, rest[0]};
  const bool is_end = rank == kLonely || rank == rest[0];
  for (const int other : is_end ? partners : is_partner ? ends : std::vector<int>{}) exchange(channel, other, 3);
  if (is_end || is_partner) say(rank, "fine");
}

void live(const std::string& what, int rank, int size, const std::string& host, int port) {
  const auto store = open_store(host, port, rank, size);
  {
    const auto backend = make_backend("ucx", {std::make_shared<PrefixStore>("ucx", store), rank, size, kDeadline});
    if (what == "calls") return fail(rank, [&] { do_calls(backend->channel()); });
    do_messages(backend->channel(), *store);
  }
  // The store goes last.
  const std::string gone = "all are gone";
  if (store->add("gone", 1) == size) store->set(gone, "");
  if (rank == 0) store->wait({&gone, 1}, kDeadline);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 6) return 2;
  for (int index = 5; index < argc; ++index) {
    if (::fork() != 0) continue;
    const int rank = std::atoi(argv[index]);
    try {
      live(argv[1], rank, std::atoi(argv[2]), argv[3], std::atoi(argv[4]));
    } catch (const std::exception& error) {
      say(rank, concat("failed: ", describe(error)));
    }
    std::fflush(stdout);
    ::_exit(0);
  }
  while (::wait(nullptr) > 0) {
  }
  return 0;
}
