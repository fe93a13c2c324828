// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/base/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <atomic>
#include <memory>

#include "gradwire/base/environment.h"

namespace gradwire::log {
namespace {

Level level_from_environment() {
  const std::string name = environment("GRADWIRE_LOG").value_or("off");
  if (name == "debug") return Level::debug;
  if (name == "info") return Level::info;
  if (name == "warn") return Level::warn;
  if (name == "error") return Level::error;
  return Level::off;
}

std::atomic<Level>& level() {
  static std::atomic<Level> value{level_from_environment()};
  return value;
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

}  // namespace

bool enabled(Level value) noexcept { return value != Level::off && value >= level().load(std::memory_order_relaxed); }

void set_level(Level value) noexcept { level().store(value, std::memory_order_relaxed); }

void set_rank(int value) { rank.store(value, std::memory_order_relaxed); }

void write(Level value, std::string_view message) noexcept {
  if (!enabled(value)) return;
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

}  // namespace gradwire::log
