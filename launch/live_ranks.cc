// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "launch/live_ranks.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <functional>
#include <optional>
#include <string_view>

#include "gradwire/base/strings.h"

namespace gradwire::launch {
namespace {

using observe::RunSums;

constexpr double kSlow = 1.2;
constexpr double kNano = 1e-9;

template <class... Arguments>
std::string format(const char* pattern, Arguments... arguments) {
  std::array<char, 256> text{};
  std::snprintf(text.data(), text.size(), pattern, arguments...);
  return text.data();
}

std::string in_unit(double value, const std::vector<std::pair<double, const char*>>& units) {
  for (const auto& [factor, unit] : units) {
    if (value >= factor) return format("%.3g %s", value / factor, unit);
  }
  return format("%.3g %s", value / units.back().first, units.back().second);
}

std::string human_bytes(double bytes) {
  if (bytes == 0) return "0 B";
  return in_unit(bytes, {{1e9, "GB"}, {1e6, "MB"}, {1e3, "kB"}, {1, "B"}});
}

std::string human_seconds(double seconds) {
  if (seconds == 0) return "0 s";
  return in_unit(seconds, {{1, "s"}, {1e-3, "ms"}, {1e-6, "us"}});
}

std::string percent(double part, double whole) { return whole > 0 ? format("%.0f%%", 100 * part / whole) : "-"; }

// The loss of the first rank that told one, or of the first whose loss is not finite.
std::optional<double> loss_of(const std::vector<LiveRank>& ranks) {
  std::optional<double> loss;
  for (const LiveRank& rank : ranks) {
    if (!rank.now || !rank.now->loss) continue;
    if (!std::isfinite(*rank.now->loss)) return rank.now->loss;
    if (!loss) loss = rank.now->loss;
  }
  return loss;
}

// As Prometheus' text format has numbers.
std::string number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  return format("%.17g", value);
}

// Whether reductions of buckets are among what was recorded. Each takes some time.
bool has_buckets(const RunSums& run) { return run.totals.hook > 0; }

// What a rank does at this moment, where the moment is long enough to be seen.
std::string state_of(const LiveRank& rank, std::int64_t now) {
  if (!rank.now) return "has not begun";
  const double since = kNano * static_cast<double>(now - rank.now->phase_begin);
  if (rank.now->phase_begin == 0) return "no step yet";
  const bool waits_for_others = rank.now->phase == observe::StepPhase::wait && !has_buckets(*rank.now);
  std::string state(waits_for_others && rank.now->totals.steps > 0 ? "waiting for averages"
                                                                   : observe::name_of(rank.now->phase));
  if (since >= 1) state += format(" for %.0f s", since);
  return state;
}

// The cells of a rank, which the terminal and the page have in common.
const std::array<const char*, 8> kHeads{"rank", "step", "steps/s", "a step", "compute", "waits", "sent a step", "now"};

std::array<std::string, 8> cells_of(const LiveRank& rank, std::int64_t now) {
  const std::string none = "-";
  return {std::to_string(rank.rank),
          rank.now ? std::to_string(rank.now->totals.steps) : none,
          rank.any_steps ? format("%.2f", rank.steps_per_second) : none,
          rank.any_steps ? human_seconds(rank.step) : none,
          rank.any_steps ? percent(rank.compute, rank.step) : none,
          rank.any_steps ? percent(rank.communication + rank.hook, rank.step) : none,
          rank.sent ? human_bytes(*rank.sent) : none,
          state_of(rank, now)};
}

std::string sentence_of_slow(const std::vector<int>& slow) {
  if (slow.empty()) return "";
  std::vector<std::string> names;
  for (const int rank : slow) names.push_back(std::to_string(rank));
  return concat("the others wait for rank", slow.size() == 1 ? " " : "s ", join(names, ", "));
}

bool is_one_of(const std::vector<int>& list, int value) {
  return std::find(list.begin(), list.end(), value) != list.end();
}

}  // namespace

LiveRank live_rank(int rank, const std::optional<RunSums>& before, const RunSums& now) {
  LiveRank live{.rank = rank, .now = now};
  const RunSums from = before.value_or(RunSums{});
  const auto steps = static_cast<double>(now.totals.steps - from.totals.steps);
  if (steps == 0) return live;
  live.any_steps = true;
  // From the end of a step to the end of another one: what lies between steps belongs to the time of a step here.
  const double seconds = kNano * static_cast<double>((now.end - now.begin) - (from.end - from.begin));
  live.steps_per_second = seconds > 0 ? steps / seconds : 0;
  const auto mean = [steps](std::int64_t total, std::int64_t base) {
    return kNano * static_cast<double>(total - base) / steps;
  };
  live.step = mean(now.totals.whole, from.totals.whole);
  live.compute = mean(now.totals.split.compute, from.totals.split.compute);
  live.communication = mean(now.totals.split.communication, from.totals.split.communication);
  live.hook = mean(now.totals.split.hook, from.totals.split.hook);
  if (now.totals.hook > from.totals.hook) live.sent = static_cast<double>(now.totals.sent - from.totals.sent) / steps;
  return live;
}

std::vector<int> slow_ranks(const std::vector<LiveRank>& ranks) {
  std::vector<double> computes;
  for (const LiveRank& rank : ranks) {
    if (rank.any_steps) computes.push_back(rank.compute);
  }
  std::vector<int> slow;
  if (computes.size() < 2) return slow;
  std::sort(computes.begin(), computes.end());
  const double median = computes[(computes.size() - 1) / 2];
  for (const LiveRank& rank : ranks) {
    if (rank.any_steps && median > 0 && rank.compute >= kSlow * median) slow.push_back(rank.rank);
  }
  return slow;
}

std::string line_of_job(const std::vector<LiveRank>& ranks) {
  std::uint64_t steps = 0;
  int moving = 0;  // ranks in which a step has ended lately
  double slowest = 0;
  int sending = 0;  // ranks of which is known what they sent
  double sent = 0;
  double waits = 0;
  double whole = 0;
  for (const LiveRank& rank : ranks) {
    if (rank.now) steps = std::max(steps, rank.now->totals.steps);
    if (!rank.any_steps) continue;
    slowest = moving++ == 0 ? rank.steps_per_second : std::min(slowest, rank.steps_per_second);
    sending += rank.sent ? 1 : 0;
    sent += rank.sent.value_or(0);
    waits += rank.communication + rank.hook;
    whole += rank.step;
  }
  if (steps == 0) return "no step has ended yet";
  std::string line = concat("step ", steps);
  if (moving > 0) {
    line += format(", %.2f steps/s, %s waiting", slowest, percent(waits, whole).c_str());
    if (sending > 0) line += concat(", ", human_bytes(sent / sending), " sent a step");
  } else {
    line += ", and no step has ended lately";
  }
  if (const auto loss = loss_of(ranks))
    line += std::isnan(*loss) ? std::string(", loss nan") : format(", loss %.4g", *loss);  // without the NaN's sign
  const std::string slow = sentence_of_slow(slow_ranks(ranks));
  return slow.empty() ? line : concat(line, "; ", slow);
}

std::string table_of_ranks(const std::vector<LiveRank>& ranks, std::int64_t now, int width, int height) {
  std::vector<std::array<std::string, 8>> rows;
  rows.emplace_back();
  std::copy(kHeads.begin(), kHeads.end(), rows.front().begin());
  const std::size_t room = static_cast<std::size_t>(std::max(height, 3)) - 2;
  const std::size_t shown = ranks.size() <= room ? ranks.size() : room - 1;
  for (std::size_t i = 0; i < shown; ++i) rows.push_back(cells_of(ranks[i], now));
  std::array<std::size_t, 8> widths{};
  for (const auto& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string table = line_of_job(ranks).substr(0, static_cast<std::size_t>(width)) + "\n";
  for (const auto& row : rows) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) {
      const std::string padding(widths[i] - row[i].size(), ' ');
      line += i + 1 < row.size() ? concat(padding, row[i], "  ") : row[i];
    }
    table += line.substr(0, static_cast<std::size_t>(width)) + "\n";
  }
  if (shown < ranks.size())
    table += concat("and ", ranks.size() - shown, " more ranks").substr(0, static_cast<std::size_t>(width)) + "\n";
  return table;
}

std::string page_of_ranks(const std::vector<LiveRank>& ranks, std::int64_t now) {
  const std::vector<int> slow = slow_ranks(ranks);
  // The browser itself refuses whatever is not in the page.
  std::string page =
      "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">"
      "<meta http-equiv=\"refresh\" content=\"1\">"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; img-src "
      "data:\"><link rel=\"icon\" href=\"data:,\"><title>gradwire-run</title><style>"
      ":root{color-scheme:light dark;--line:#8884;--compute:#7f95b8;--wait:#e8590c}"
      "body{font:15px/1.5 system-ui,sans-serif;margin:0 auto;max-width:1000px;padding:16px}"
      "h1{font-size:20px;margin:0 0 4px}p{margin:0 0 16px}.slow{color:#d9480f;font-weight:600}"
      ".scroll{overflow-x:auto}table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}"
      "th,td{padding:5px 10px;text-align:right;border-bottom:1px solid var(--line);white-space:nowrap}"
      "th:last-child,td:last-child{text-align:left}"
      "@media(max-width:560px){th,td{padding:4px 6px}th:nth-child(3),td:nth-child(3),"
      "th:nth-child(4),td:nth-child(4),th:nth-child(7),td:nth-child(7)"
      "{display:none}th:nth-child(9),td:nth-child(9){display:none}td:nth-child(8),th:nth-child(8){white-space:normal;"
      "text-align:left}}"
      ".bar{display:flex;width:120px;height:12px;background:var(--line);border-radius:3px;overflow:hidden}"
      ".bar i{display:block}.compute{background:var(--compute)}.wait{background:var(--wait)}"
      "</style></head><body><h1>gradwire-run</h1>";
  page += concat("<p>", line_of_job(ranks), "</p><div class=\"scroll\"><table><thead><tr>");
  for (const char* head : kHeads) page += concat("<th scope=\"col\">", head, "</th>");
  page += "<th scope=\"col\">compute and wait</th></tr></thead><tbody>";
  for (const LiveRank& rank : ranks) {
    page += is_one_of(slow, rank.rank) ? "<tr class=\"slow\">" : "<tr>";
    for (const std::string& cell : cells_of(rank, now)) page += concat("<td>", cell, "</td>");
    const double whole = rank.step > 0 ? rank.step : 1;
    page += format(
        "<td><div class=\"bar\"><i class=\"compute\" style=\"width:%.1f%%\"></i><i class=\"wait\" "
        "style=\"width:%.1f%%\"></i></div></td></tr>",
        100 * rank.compute / whole, 100 * (rank.communication + rank.hook) / whole);
  }
  return page + "</tbody></table></div></body></html>\n";
}

std::string metrics_of_ranks(const std::vector<LiveRank>& ranks) {
  std::string text;
  const auto add = [&](const char* name, const char* type, const char* help,
                       const std::function<std::optional<double>(const RunSums&)>& value) {
    text += concat("# HELP ", name, " ", help, "\n# TYPE ", name, " ", type, "\n");
    for (const LiveRank& rank : ranks) {
      if (!rank.now) continue;
      if (const auto sample = value(*rank.now))
        text += concat(name, "{rank=\"", rank.rank, "\"} ", number(*sample), "\n");
    }
  };
  const auto seconds = [](std::int64_t time) { return kNano * static_cast<double>(time); };
  const auto of_buckets = [](const RunSums& run, double value) {
    return has_buckets(run) ? std::optional(value) : std::nullopt;
  };
  add("gradwire_steps_total", "counter", "Training steps that have ended.",
      [](const RunSums& run) { return static_cast<double>(run.totals.steps); });
  add("gradwire_step_seconds_total", "counter", "Time of these steps.",
      [&](const RunSums& run) { return seconds(run.totals.whole); });
  add("gradwire_forward_seconds_total", "counter", "Time of forward passes, with the loss.",
      [&](const RunSums& run) { return seconds(run.totals.forward); });
  add("gradwire_backward_seconds_total", "counter", "Time of backward passes, without the wait at their end.",
      [&](const RunSums& run) { return seconds(run.totals.backward); });
  add("gradwire_bucket_wait_seconds_total", "counter", "Time from the last gradient to the averages.",
      [&](const RunSums& run) { return seconds(run.totals.wait); });
  add("gradwire_compute_seconds_total", "counter", "Time for which the training thread computed.",
      [&](const RunSums& run) { return seconds(run.totals.split.compute); });
  add("gradwire_communication_seconds_total", "counter",
      "Time for which a collective kept the training thread waiting.",
      [&](const RunSums& run) { return seconds(run.totals.split.communication); });
  add("gradwire_hook_wait_seconds_total", "counter", "Time for which the rest of averaging kept it waiting.",
      [&](const RunSums& run) { return seconds(run.totals.split.hook); });
  add("gradwire_hook_seconds_total", "counter", "Time of hooks, also while the training thread computed.",
      [&](const RunSums& run) { return of_buckets(run, seconds(run.totals.hook)); });
  add("gradwire_sent_bytes_total", "counter", "Bytes that were sent for gradients, encoded.",
      [&](const RunSums& run) { return of_buckets(run, static_cast<double>(run.totals.sent)); });
  add("gradwire_collective_bytes_total", "counter", "Bytes of the tensors of collectives in steps.",
      [](const RunSums& run) { return static_cast<double>(run.totals.call_bytes); });
  add("gradwire_loss", "gauge", "The last loss that the program told.", [](const RunSums& run) { return run.loss; });
  return text;
}

}  // namespace gradwire::launch
