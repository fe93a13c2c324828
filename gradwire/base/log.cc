// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/base/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <atomic>
#include <memory>
#include <string>
#include <utility>

#include "gradwire/base/environment.h"
#include "gradwire/base/notice.h"
#include "gradwire/base/strings.h"

namespace gradwire::log {
namespace {

struct Choice {
  std::atomic<Level> level{Level::off};
  std::atomic<bool> made{false};  // by anybody
};

void choose(Choice& choice, Level level) noexcept {
  choice.level.store(level, std::memory_order_relaxed);
  choice.made.store(true, std::memory_order_relaxed);
}

std::atomic<int> rank{-1};

spdlog::logger& logger() {
  static const std::shared_ptr<spdlog::logger> value = [] {
    auto made = std::make_shared<spdlog::logger>("gradwire", std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
    made->set_pattern("%H:%M:%S.%e gradwire %^%l%$ %v");
    made->set_level(spdlog::level::trace);
    return made;
  }();
  return *value;
}

spdlog::level::level_enum to_spdlog(Level value) {
  switch (value) {
    case Level::debug:
      return spdlog::level::debug;
    case Level::info:
      return spdlog::level::info;
    case Level::warn:
      return spdlog::level::warn;
    default:
      return spdlog::level::err;
  }
}

void write_line(Level value, std::string_view message) noexcept {
  try {
    const int number = rank.load(std::memory_order_relaxed);
    if (number >= 0) {
      logger().log(to_spdlog(value), "rank {}: {}", number, message);
    } else {
      logger().log(to_spdlog(value), "{}", message);
    }
  } catch (...) {  // a full disk behind stderr must not end a training run
  }
}

// No choice is made where the environment makes none; what is no level is told on stderr.
void read_environment(Choice& choice) {
  const std::string name = environment("GRADWIRE_LOG").value_or("");
  if (name.empty()) return;
  for (const auto& [word, level] :
       {std::pair("debug", Level::debug), std::pair("info", Level::info), std::pair("warn", Level::warn),
        std::pair("error", Level::error), std::pair("off", Level::off)}) {
    if (name == word) return choose(choice, level);
  }
  write_line(Level::warn, concat("GRADWIRE_LOG is '", name, "', which is no level: debug, info, warn, error or off"));
}

Choice& choice() {
  static Choice value;
  static const bool read = [] {
    read_environment(value);
    return true;
  }();
  static_cast<void>(read);
  return value;
}

}  // namespace

bool enabled(Level value) noexcept {
  return value != Level::off && value >= choice().level.load(std::memory_order_relaxed);
}

void set_level(Level value) noexcept { choose(choice(), value); }

void set_rank(int value) { rank.store(value, std::memory_order_relaxed); }

void write(Level value, std::string_view message) noexcept {
  if (enabled(value)) write_line(value, message);
}

void notice(std::string_view message) noexcept {
  if (enabled(Level::warn) || !choice().made.load(std::memory_order_relaxed)) write_line(Level::warn, message);
}

}  // namespace gradwire::log
