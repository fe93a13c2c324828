// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "launch/hearing.h"

#include "gradwire/store/stored_number.h"
#include "launch/free_port.h"
#include "launch/record_keys.h"

namespace gradwire::launch {
namespace {

// Gathering.
void hear_who_joins(const NodeCoordinatorOptions& options, int round, NodeStore& store, Heard& heard) {
  for (int node = 1; node < options.nodes; ++node) {
    if (!store.has(join_key(round, node))) heard.absent.push_back(node);
  }
  if (!heard.absent.empty()) return;
  for (int node = 1; node < options.nodes; ++node) {
    heard.joined.push_back(decode_node(store.get(join_key(round, node))));
  }
  if (options.master_port == 0) heard.free_port = find_free_port(PortScope::all_interfaces);
}

// Joining.
void hear_the_plan(NodeStore& store, Heard& heard) {
  heard.round = static_cast<int>(stored_number(kRoundKey, store.get(kRoundKey)));
  if (store.has(plan_key(heard.round))) heard.plan = decode_plan(store.get(plan_key(heard.round)));
}

// Running.
void hear_attempt(const NodeCoordinatorOptions& options, const Position& position, NodeStore& store, Heard& heard) {
  const int round = position.round;
  const bool is_over = store.has(over_key(round));
  heard.over_by_interruption = is_over && store.get(over_key(round)) == kOverByInterruption;
  heard.over = position.over || (is_over && !heard.over_by_interruption);
  if (options.node != 0) {
    if (store.has(next_key(round))) heard.next = decode_verdict(store.get(next_key(round)));
    return;
  }
  heard.beats = store.beats(*position.plan);
  heard.ends.resize(heard.beats.size());
  for (int node = 0; node < options.nodes; ++node) {
    const auto& known = position.ends[node];
    if (known && known->kind != NodeEnd::Kind::good) continue;  // one that ended well may still be interrupted
    const std::string key = end_key(round, node);
    if (store.has(key)) heard.ends[node] = decode_end(store.get(key));
  }
}

// Leaving.
void hear_who_stays(const NodeCoordinatorOptions& options, NodeStore& store, Heard& heard) {
  if (options.node != 0) return;
  for (int node = 1; node < options.nodes; ++node) {
    if (store.has_come(node) && !store.has(bye_key(node))) heard.staying.push_back(node);
  }
}

}  // namespace

void hear_store(const NodeCoordinatorOptions& options, const Position& position, NodeStore& store, Heard& heard) {
  using Phase = Position::Phase;
  if (position.phase == Phase::leaving) return hear_who_stays(options, store, heard);
  if (position.phase == Phase::running) return hear_attempt(options, position, store, heard);
  if (store.has(kQuitKey)) heard.quit = decode_end(store.get(kQuitKey));
  if (options.node == 0) return hear_who_joins(options, position.round, store, heard);
  hear_the_plan(store, heard);
}

}  // namespace gradwire::launch
