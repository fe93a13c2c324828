// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "launch/node_records.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>

#include "gradwire/base/strings.h"
#include "launch/launch_error.h"

namespace gradwire::launch {
namespace {

using Json = nlohmann::json;

// Host names may hold any byte.
std::string text_of(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

template <class Read>
auto decode(const char* what, const std::string& text, Read read) {
  try {
    return read(Json::parse(text));
  } catch (const Json::exception& problem) {
    throw LaunchError(kHostsFailedExit, concat("the rendezvous holds no ", what, " where one belongs (", problem.what(),
                                               "); does another program use the same store?"));
  }
}

Json json_of(const NodeRecord& record) {
  return {{"host", record.host},
          {"launcher", record.launcher},
          {"pid", record.pid},
          {"ranks", record.ranks},
          {"attempt", record.attempt}};
}

NodeRecord node_of(const Json& json) {
  return {json.at("host"), json.at("launcher"), json.at("pid"), json.at("ranks"), json.at("attempt")};
}

template <class Kind>
Kind kind_of(const Json& json, Kind last) {
  const int kind = json.at("kind");
  if (kind < 0 || kind > static_cast<int>(last)) throw Json::out_of_range::create(401, "unknown kind", &json);
  return static_cast<Kind>(kind);
}

// Which end explains the others: a rank may fail because a host vanished, and exit with an error because another was
// killed, but not the other way round. What `followed` had its cause in another rank.
int weight(const NodeEnd& end) {
  switch (end.kind) {
    case NodeEnd::Kind::good:
      return 0;
    case NodeEnd::Kind::stopped:
      return 1;
    case NodeEnd::Kind::followed:
      return 2;
    case NodeEnd::Kind::failed:
      return 3;
    case NodeEnd::Kind::killed:
      return 4;
    case NodeEnd::Kind::vanished:
      return 5;
    case NodeEnd::Kind::final:
      return 6;
  }
  return 0;
}

// Whether `one` explains less than `other`.
bool explains_less(const NodeEnd& one, const NodeEnd& other) {
  if (weight(one) != weight(other)) return weight(one) < weight(other);
  return one.time != 0 && other.time != 0 && one.time > other.time;
}

}  // namespace

int Plan::world() const noexcept { return first_rank(static_cast<int>(nodes.size())); }

int Plan::first_rank(int node) const noexcept {
  return std::accumulate(nodes.begin(), nodes.begin() + node, 0,
                         [](int sum, const NodeRecord& record) { return sum + record.ranks; });
}

std::string Plan::name_of(int node) const {
  std::vector<int> ranks(static_cast<std::size_t>(nodes[node].ranks));
  std::iota(ranks.begin(), ranks.end(), first_rank(node));
  return concat("node ", node, " (", nodes[node].host, ", ", name_ranks(ranks), ")");
}

std::string encode(const JobRecord& record) {
  return text_of(
      {{"protocol", record.protocol}, {"version", record.version}, {"job_id", record.job_id}, {"nodes", record.nodes}});
}

std::string encode(const NodeRecord& record) { return text_of(json_of(record)); }

std::string encode(const Plan& plan) {
  Json nodes = Json::array();
  for (const NodeRecord& record : plan.nodes) nodes.push_back(json_of(record));
  return text_of({{"job_id", plan.job_id},
                  {"attempt", plan.attempt},
                  {"max_restarts", plan.max_restarts},
                  {"master_port", plan.master_port},
                  {"nodes", nodes},
                  {"watched", plan.watched}});
}

std::string encode(const NodeEnd& end) {
  return text_of(
      {{"kind", static_cast<int>(end.kind)}, {"exit_code", end.exit_code}, {"what", end.what}, {"time", end.time}});
}

std::string encode(const Verdict& verdict) {
  return text_of({{"kind", static_cast<int>(verdict.kind)}, {"exit_code", verdict.exit_code}, {"what", verdict.what}});
}

JobRecord decode_job(const std::string& text) {
  return decode("job", text, [](const Json& json) {
    JobRecord record;
    record.protocol = json.at("protocol");
    record.version = json.at("version");
    // Another version may have put the rest elsewhere.
    record.job_id = json.value("job_id", "");
    record.nodes = json.value("nodes", 0);
    return record;
  });
}

NodeRecord decode_node(const std::string& text) { return decode("node", text, node_of); }

Plan decode_plan(const std::string& text) {
  return decode("plan", text, [](const Json& json) {
    Plan plan{json.at("job_id"), json.at("attempt"), json.at("max_restarts"), json.at("master_port"), {}};
    for (const Json& node : json.at("nodes")) plan.nodes.push_back(node_of(node));
    plan.watched = json.value("watched", false);
    return plan;
  });
}

NodeEnd decode_end(const std::string& text) {
  return decode("end of a node", text, [](const Json& json) {
    return NodeEnd{kind_of(json, NodeEnd::Kind::followed), json.at("exit_code"), json.at("what"), json.at("time")};
  });
}

Verdict decode_verdict(const std::string& text) {
  return decode("verdict", text, [](const Json& json) {
    return Verdict{kind_of(json, Verdict::Kind::end), json.at("exit_code"), json.at("what")};
  });
}

Verdict judge(const Plan& plan, const std::vector<NodeEnd>& ends) {
  const auto worst = std::max_element(ends.begin(), ends.end(), explains_less);
  if (worst == ends.end() || worst->kind == NodeEnd::Kind::good) return {};
  const std::string what = worst->what.empty() ? "the job was stopped" : worst->what;
  if (worst->kind == NodeEnd::Kind::final) return {Verdict::Kind::end, worst->exit_code, what};
  if (plan.attempt < plan.max_restarts) {
    return {Verdict::Kind::restart, worst->exit_code,
            concat(what, "; all ranks start again (restart ", plan.attempt + 1, " of ", plan.max_restarts, ")")};
  }
  return {Verdict::Kind::end, worst->exit_code,
          plan.max_restarts == 0 ? what : concat(what, "; all ", plan.max_restarts, " restarts are used up")};
}

}  // namespace gradwire::launch
