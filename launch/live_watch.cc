// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "launch/live_watch.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "gradwire/base/strings.h"

namespace gradwire::launch {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kRead{1000};
// A client gets its answer after so long at most.
constexpr milliseconds kServe{100};
// How often a line says how the job gets on where there is no terminal.
constexpr milliseconds kLine{10000};

std::int64_t now_in_nanoseconds() {
  return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::pair<int, int> size_of_terminal() {
  winsize size{};
  if (::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0 || size.ws_row == 0) return {80, 24};
  return {size.ws_col, size.ws_row};
}

}  // namespace

LiveWatch::LiveWatch(const Options& options, std::unique_ptr<LiveSource> source)
    : options_(options), source_(std::move(source)) {
  if (options_.watch_port) server_.emplace(*options_.watch_port);
}

void LiveWatch::follow(int first_rank, int count) {
  source_->follow(first_rank, count);
  looks_.assign(static_cast<std::size_t>(count), {});
  ranks_.clear();
  for (int rank = first_rank; rank < first_rank + count; ++rank) ranks_.push_back({.rank = rank});
  next_read_ = Deadline::after(kRead);
  next_line_ = Deadline::after(kLine);
}

Deadline LiveWatch::next_look() const noexcept {
  return server_ ? next_read_.earlier(Deadline::after(kServe)) : next_read_;
}

void LiveWatch::read() {
  source_->refresh();
  for (std::size_t i = 0; i < looks_.size(); ++i) {
    if (const auto look = source_->look(i)) looks_[i].add(*look);
    ranks_[i] = looks_[i].rank(ranks_[i].rank, Deadline::Clock::now());
  }
}

std::optional<Page> LiveWatch::page(std::string_view path) const {
  if (path == "/") return Page{"text/html; charset=utf-8", page_of_ranks(ranks_, now_in_nanoseconds())};
  if (path == "/metrics") return Page{"text/plain; version=0.0.4; charset=utf-8", metrics_of_ranks(ranks_)};
  return std::nullopt;
}

std::string LiveWatch::reports() const {
  std::string lines;
  for (const LiveRank& rank : ranks_) {
    if (rank.now) lines += report_line(rank.rank, *rank.now, now_in_nanoseconds());
  }
  return lines;
}

void LiveWatch::show(Output& output) {
  if (options_.report_steps) output.tell(reports());
  if (tell_) tell_(reports());
  if (!options_.watch) return;
  if (output.can_show()) {
    const auto [width, height] = size_of_terminal();
    output.show(table_of_ranks(ranks_, now_in_nanoseconds(), width - 1, std::max(3, height / 2)));
  } else if (next_line_.expired()) {
    next_line_ = Deadline::after(kLine);
    output.say(concat("gradwire-run: ", line_of_job(ranks_), "\n"));
  }
}

void LiveWatch::look(Output& output) {
  if (server_ && !std::exchange(told_port_, true))
    output.say(concat("gradwire-run: the job can be watched at http://127.0.0.1:", server_->port(), "/\n"));
  if (next_read_.expired()) {
    read();
    next_read_ = Deadline::after(kRead);
    show(output);
  }
  if (server_) server_->serve([this](std::string_view path) { return page(path); });
}

void LiveWatch::finish(Output& output) {
  // The means of the whole run, and not of the last moment.
  source_->refresh();
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    if (const auto look = source_->look(i)) ranks_[i] = live_rank(ranks_[i].rank, std::nullopt, look->sums);
  }
  next_line_ = Deadline::after(milliseconds(0));
  show(output);
  if (options_.watch) output.keep_shown();
}

}  // namespace gradwire::launch
