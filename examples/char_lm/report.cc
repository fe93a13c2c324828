// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "examples/char_lm/report.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "examples/char_lm/errors.h"
#include "gradwire/base/strings.h"

namespace char_lm {
namespace {

// gradwire-run says by GRADWIRE_TERMINAL that it shows what ranks write on one.
bool on_terminal() { return isatty(STDOUT_FILENO) == 1 || std::getenv("GRADWIRE_TERMINAL") != nullptr; }

using gradwire::concat;
using gradwire::observe::BucketTimes;
using gradwire::observe::CallTimes;
using gradwire::observe::Span;
using gradwire::observe::StepTimes;
using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

constexpr auto kRedraw = std::chrono::milliseconds(100);

// printf's number formats are the shortest way to columns.
template <class... Values>
std::string format(const char* pattern, Values... values) {
  std::array<char, 200> buffer{};
  std::snprintf(buffer.data(), buffer.size(), pattern, values...);
  return buffer.data();
}

std::string pace_text(const Pace& pace) {
  return format("%6.2f steps/s  %5.1f%% communication  %s/step", pace.steps_per_second, 100 * pace.communication_share,
                human_bytes(pace.bytes_per_step).c_str());
}

Json json_of(const Split& split) {
  return {{"compute", split.compute}, {"communication", split.communication}, {"hook", split.hook}};
}

// In seconds since `origin`; nothing at 0 for what did not come.
Json json_of(const Span& span, std::int64_t origin) {
  if (span.begin == 0) return Json::array({0.0, 0.0});
  const auto seconds = [origin](std::int64_t time) { return static_cast<double>(time - origin) / 1e9; };
  return Json::array({seconds(span.begin), seconds(span.end)});
}

Json timeline(std::int64_t step, const StepTimes& times) {
  const std::int64_t origin = times.whole.begin;
  Json buckets = Json::array();
  for (const BucketTimes& bucket : times.buckets) {
    Json calls = Json::array();
    for (const CallTimes& call : bucket.calls) calls.push_back(json_of(call.span, origin));
    buckets.push_back({{"bytes", bucket.bytes},
                       {"sent", bucket.sent},
                       {"ready", json_of({bucket.ready, bucket.ready}, origin)[0]},
                       {"hook", json_of(bucket.run, origin)},
                       {"calls", calls}});
  }
  return {{"type", "timeline"},
          {"step", step},
          {"seconds", json_of(times.whole, origin)[1]},
          {"forward", json_of(times.forward, origin)},
          {"backward", json_of(times.backward, origin)},
          {"wait", json_of(times.wait, origin)},
          {"optimizer", json_of(times.rest, origin)},
          {"buckets", buckets}};
}

}  // namespace

std::string human_bytes(double bytes) {
  static constexpr std::array<const char*, 4> kUnits{"B", "kB", "MB", "GB"};
  std::size_t unit = 0;
  while (bytes >= 1000 && unit + 1 < kUnits.size()) {
    bytes /= 1000;
    ++unit;
  }
  return format(unit == 0 ? "%.0f %s" : "%.2f %s", bytes, kUnits.at(unit));
}

std::string printable(const std::string& text) {
  std::string shown = text;
  std::replace_if(
      shown.begin(), shown.end(), [](char byte) { return (byte < ' ' || byte > '~') && byte != '\n' && byte != '\t'; },
      '?');
  return shown;
}

Report::Report(const Options& options, const RunFacts& facts, bool speaks)
    : options_(options), facts_(facts), speaks_(speaks), live_(speaks && on_terminal()) {
  if (speaks_ && !options_.json.empty()) {
    json_.open(options_.json, std::ios::trunc);
    if (!json_) {
      throw UserError(concat("--json ", options_.json, " cannot be written"));
    }
  }
}

void Report::header() {
  if (!speaks_) {
    return;
  }
  write_json(Json{{"type", "run"},
                  {"world_size", facts_.world},
                  {"threads", facts_.threads},
                  {"backend", facts_.backend},
                  {"hook", options_.hook},
                  {"dtype", options_.dtype},
                  {"parameters", facts_.parameters},
                  {"batch", options_.batch},
                  {"context", options_.context},
                  {"first_step", facts_.first_step},
                  {"steps", options_.steps}}
                 .dump());
  const auto count = [](auto number, const char* what) { return concat(number, " ", what, number == 1 ? "" : "s"); };
  std::cout << "A character transformer learns " << facts_.source << ": " << facts_.train_characters
            << " characters, and " << facts_.held_out_characters << " held out.\n"
            << "  model    " << count(options_.layers, "layer") << " of width " << options_.width << ", "
            << count(options_.heads, "head") << ", " << facts_.parameters << " parameters in " << options_.dtype << "\n"
            << "  ranks    " << facts_.world << ", " << count(facts_.threads, "thread") << " each; backend "
            << facts_.backend << ", hook " << options_.hook << "\n"
            << "  a step   " << count(options_.batch, "sample") << " of " << options_.context << " characters, "
            << options_.batch / facts_.world << " a rank; " << count(options_.steps, "step") << " in all\n"
            << "The loss is in nats a character; guessing blindly costs "
            << format("%.2f", std::log(static_cast<double>(facts_.vocabulary))) << ".\n";
  if (facts_.first_step > 0) {
    std::cout << "It goes on from " << options_.resume << " after step " << facts_.first_step << ".\n";
    if (!facts_.remark.empty()) {
      std::cout << facts_.remark << "\n";
    }
  }
  std::cout << std::flush;
}

void Report::progress(std::int64_t step) {
  step_ = step;
  if (live_ && loss_known_ && Clock::now() - drawn_ >= kRedraw) {
    draw();
  }
}

std::string Report::line() const {
  return format("step %5lld/%lld  loss %.4f  ", static_cast<long long>(step_), static_cast<long long>(options_.steps),
                loss_) +
         pace_text(pace_);
}

void Report::draw() {
  drawn_ = Clock::now();
  // "\r" to the line's start, "\x1b[K" wipes what was there.
  std::cout << "\r" << line() << "\x1b[K" << std::flush;
}

void Report::clear() {
  if (live_) {
    std::cout << "\r\x1b[K";
  }
}

void Report::logged_step(std::int64_t step, double loss, const Pace& pace, const gradwire::observe::StepTimes& times) {
  if (!speaks_) {
    return;
  }
  // On a terminal a line stays for each tenth of the run; the others give way to the next.
  const bool stays = !live_ || !loss_known_ || step * 10 / options_.steps > kept_ * 10 / options_.steps;
  step_ = step;
  loss_ = loss;
  loss_known_ = true;
  pace_ = pace;
  if (stays) {
    say(line());
    kept_ = step;
  } else {
    draw();
  }
  write_json(Json{{"type", "step"},
                  {"step", step},
                  {"loss", loss},
                  {"steps_per_second", pace.steps_per_second},
                  {"communication_share", pace.communication_share},
                  {"bytes_per_step", pace.bytes_per_step},
                  {"split_seconds", json_of(pace.split)}}
                 .dump());
  write_json(timeline(step, times).dump());
}

void Report::say(const std::string& line) {
  if (speaks_) {
    clear();
    std::cout << line << std::endl;
  }
}

void Report::write_json(const std::string& line) {
  if (json_.is_open() && !(json_ << line << std::endl)) {
    throw std::runtime_error(concat("writing --json ", options_.json, " failed; is the disk full?"));
  }
}

void Report::summary(const Summary& summary) {
  if (!speaks_) {
    return;
  }
  clear();
  if (!summary.sample.empty()) {
    std::cout << "\nWhat it writes by itself:\n" << printable(summary.sample) << "\n";
  }
  print_table(summary);
  const std::int64_t steps = options_.steps - facts_.first_step;
  const double tokens = static_cast<double>(options_.batch) * options_.context;
  write_json(Json{{"type", "summary"},
                  {"steps", steps},
                  {"seconds", summary.seconds},
                  {"steps_per_second", summary.pace.steps_per_second},
                  {"tokens_per_second", summary.pace.steps_per_second * tokens},
                  {"world_size", facts_.world},
                  {"backend", facts_.backend},
                  {"hook", options_.hook},
                  {"dtype", options_.dtype},
                  {"parameters", facts_.parameters},
                  {"bytes_per_step", summary.pace.bytes_per_step},
                  {"compression_factor", compression_factor(summary.pace)},
                  {"hook_seconds_per_step", summary.pace.hook_seconds_per_step},
                  {"communication_share", summary.pace.communication_share},
                  {"split_seconds", json_of(summary.pace.split)},
                  {"train_loss", summary.train_loss},
                  {"held_out_loss", summary.held_out_loss},
                  {"parameter_hash", summary.parameter_hash},
                  {"sample", summary.sample}}
                 .dump(-1, ' ', false, Json::error_handler_t::replace));
}

// How many times less a rank sent than an all-reduce of all gradients sends; 0 when it sent nothing.
double Report::compression_factor(const Pace& pace) const {
  const double ranks = facts_.world;
  const double plain = 2 * (ranks - 1) / ranks * static_cast<double>(facts_.parameter_bytes);
  return pace.bytes_per_step > 0 ? plain / pace.bytes_per_step : 0;
}

void Report::print_table(const Summary& summary) {
  const std::int64_t steps = options_.steps - facts_.first_step;
  const double tokens = static_cast<double>(options_.batch) * options_.context;
  const double factor = compression_factor(summary.pace);
  const std::vector<std::pair<std::string, std::string>> rows{
      {"steps", concat(steps)},
      {"seconds", format("%.2f", summary.seconds)},
      {"steps/s", format("%.2f", summary.pace.steps_per_second)},
      {"tokens/s", format("%.0f", summary.pace.steps_per_second * tokens)},
      {"world size", concat(facts_.world)},
      {"hook", options_.hook},
      {"backend", facts_.backend},
      {"sent a step", human_bytes(summary.pace.bytes_per_step)},
      {"compression", factor > 0 ? format("%.2f x", factor) : "-"},
      {"in the hook", format("%.3f ms a step", 1e3 * summary.pace.hook_seconds_per_step)},
      {"in communication", format("%.1f%%", 100 * summary.pace.communication_share)},
      {"training loss", format("%.4f", summary.train_loss)},
      {"held-out loss", format("%.4f", summary.held_out_loss)},
  };
  std::cout << "\n";
  for (const auto& [name, value] : rows) {
    std::cout << format("  %-18s %s\n", name.c_str(), value.c_str());
  }
  std::cout << std::flush;
}

}  // namespace char_lm
