// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "bench/codecs_command.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/contestants.h"
#include "bench/coordinator.h"
#include "bench/sizes.h"
#include "bench/statistics.h"
#include "gradwire/base/error.h"
#include "gradwire/base/options.h"
#include "gradwire/base/strings.h"
#include "gradwire/compress/registry.h"
#include "gradwire/kernels/dispatch.h"

namespace gradwire::bench {
namespace {

// What a table without --codec shows. The threshold keeps about one in a hundred of N(0, 1).
const std::vector<std::string> kCodecs{"fp16",
                                       "bf16",
                                       "fp8_e4m3",
                                       "fp8_e5m2",
                                       "int8",
                                       "int8:rounding=stochastic",
                                       "int4",
                                       "int4:rounding=stochastic",
                                       "int2",
                                       "one_bit",
                                       "sign",
                                       "top_k:ratio=0.01",
                                       "top_k:ratio=0.001",
                                       "threshold:threshold=2.5",
                                       "random_k:ratio=0.01",
                                       "power_sgd:rank=1",
                                       "power_sgd:rank=2",
                                       "power_sgd:rank=4"};

bool is_products(std::string_view codec) { return split_name(codec).name == kProducts; }

// One codec in one direction at one size.
struct Case {
  std::string codec;
  std::string direction;
  std::size_t bytes;
};

struct Result {
  Summary ours;
  Summary copy;
  Ratio memcpys;            // our time over memcpy's
  std::size_t encoded = 0;  // bytes
  std::string no_peer;      // why there are no figures of PyTorch's
  Summary peer;
  Ratio peer_memcpys;  // PyTorch's time over memcpy's
  Ratio ratio;         // and over ours
};

// The whole matrices that PowerSGD makes of so many bytes.
std::size_t matrix_bytes(std::size_t bytes) {
  constexpr std::size_t kMatrix = std::size_t{4} << 20;
  if (bytes >= kMatrix) return bytes / kMatrix * kMatrix;
  const auto side = static_cast<std::size_t>(std::sqrt(static_cast<double>(bytes / sizeof(float))));
  return side * side * sizeof(float);
}

Result measure_case(Coordinator& coordinator, const CodecsCommandOptions& options, const Case& which) {
  const int iterations = static_cast<int>(std::clamp<std::size_t>((std::size_t{64} << 20) / which.bytes, 3, 20));
  const std::string variant = which.direction + "/" + which.codec;
  const Measurement what{which.bytes, iterations, 1, variant, true};
  Measurement copy = what;
  copy.variant = "memcpy";
  std::vector<Entrant> entrants{{"memcpy", "gradwire", copy}, {"gradwire", "gradwire", what}};
  Result result;
  result.no_peer = options.peers ? refusal_of(coordinator, "pytorch", {which.bytes, 1, 0, variant, false})
                                 : "not asked for (--peers)";
  if (result.no_peer.empty()) entrants.push_back({"pytorch", "pytorch", what});
  auto turns = measure_in_turn(coordinator, entrants, options.rounds);
  result.ours = summarize(turns["gradwire"].samples());
  result.copy = summarize(turns["memcpy"].samples());
  result.memcpys = ratio_of_medians(turns["gradwire"].blocks, turns["memcpy"].blocks);
  result.encoded = turns["gradwire"].bytes;
  if (result.no_peer.empty()) {
    result.peer = summarize(turns["pytorch"].samples());
    result.peer_memcpys = ratio_of_medians(turns["pytorch"].blocks, turns["memcpy"].blocks);
    result.ratio = ratio_of_medians(turns["pytorch"].blocks, turns["gradwire"].blocks);
  }
  return result;
}

double gigabytes_a_second(std::size_t bytes, const Summary& summary) {
  return static_cast<double>(bytes) / summary.median / 1e3;
}

void print_json(const CodecsCommandOptions& options, const Case& which, const Result& result) {
  const auto entry = [&](const Summary& summary, const Ratio& memcpys) {
    return nlohmann::json{{"median_us", summary.median}, {"p10_us", summary.p10},
                          {"p90_us", summary.p90},       {"gbps", gigabytes_a_second(which.bytes, summary)},
                          {"memcpys", memcpys.value},    {"memcpys_low", memcpys.low},
                          {"memcpys_high", memcpys.high}};
  };
  nlohmann::json line = entry(result.ours, result.memcpys);
  line.update({{"benchmark", "codecs"},
               {"codec", which.codec},
               {"direction", which.direction},
               {"bytes", which.bytes},
               {"encoded_bytes", result.encoded},
               {"samples", result.ours.samples},
               {"memcpy_us", result.copy.median}});
  if (result.no_peer.empty()) {
    line["pytorch"] = entry(result.peer, result.peer_memcpys);
    line["pytorch"].update(
        {{"ratio", result.ratio.value}, {"ratio_low", result.ratio.low}, {"ratio_high", result.ratio.high}});
  } else if (options.peers) {
    line["pytorch"] = {{"none", result.no_peer}};
  }
  std::printf("%s\n", line.dump().c_str());
}

void print_row(const CodecsCommandOptions& options, const Case& which, const Result& result) {
  std::printf("%-25s %-6s %8s %9zu %6.1fx %7.2f GB/s %6.2f [%.2f, %.2f]", which.codec.c_str(), which.direction.c_str(),
              format_bytes(which.bytes).c_str(), result.encoded,
              static_cast<double>(which.bytes) / static_cast<double>(result.encoded),
              gigabytes_a_second(which.bytes, result.ours), result.memcpys.value, result.memcpys.low,
              result.memcpys.high);
  if (result.no_peer.empty()) {
    std::printf("   %7.2f GB/s %7.2f [%.2f, %.2f] %8.2fx [%.2f, %.2f]", gigabytes_a_second(which.bytes, result.peer),
                result.peer_memcpys.value, result.peer_memcpys.low, result.peer_memcpys.high, result.ratio.value,
                result.ratio.low, result.ratio.high);
  } else if (options.peers) {
    std::printf("   %s", result.no_peer.c_str());
  }
  std::printf("\n");
}

void print_head(const CodecsCommandOptions& options) {
  std::printf(
      "codecs: one core%s, kernels %s, float32 values N(0, 1), buffers not in the cache\nbytes of an encoding and how "
      "many times fewer than the values'; values a second, and the time in multiples of memcpy of the values [95%% "
      "interval]\n",
      options.pin ? ", pinned" : "", std::string(kernels::selected()).c_str());
  if (options.peers) {
    std::printf(
        "then PyTorch's operators for the same (peers/codec_worker.py), and their time over ours [95%% interval]\n");
  }
  std::printf("\n");
}

// Throws InvalidArgument, with the right names or options, for what is no codec.
void require_codec(const std::string& codec) {
  if (!is_products(codec)) {
    compress::make_codec(codec);
    return;
  }
  Options taken(codec, split_name(codec).options);
  if (taken.number("rank", 1) < 1) throw InvalidArgument(concat(codec, ": the rank must be at least 1"));
  taken.require_all_taken("rank=1");
}

}  // namespace

void run_codecs(const CodecsCommandOptions& options) {
  const std::vector<std::string>& codecs = options.codecs.empty() ? kCodecs : options.codecs;
  for (const std::string& codec : codecs) require_codec(codec);
  require_floats(options.bytes);
  const ScratchFolder scratch;
  const std::string socket = scratch / "coordinator";
  Coordinator coordinator(socket);
  const std::string pin = options.pin ? "--pin" : "--no-pin";
  coordinator.start({"gradwire", {{own_path(), "codec-worker", "--socket", socket, pin}}, 1});
  if (options.peers) {
    std::vector<std::string> peer = python_peer(options.python, "codec_worker.py");
    peer.insert(peer.end(), {socket, options.pin ? "pin" : "free"});
    coordinator.start({"pytorch", {peer}, 1});
  }
  if (!options.json) print_head(options);
  for (const std::size_t bytes : options.bytes) {
    for (const std::string& codec : codecs) {
      std::vector<std::string> directions{"encode", "decode"};
      if (is_products(codec)) directions.emplace_back("step");
      for (const std::string& direction : directions) {
        const Case which{codec, direction, is_products(codec) ? matrix_bytes(bytes) : bytes};
        const Result result = measure_case(coordinator, options, which);
        options.json ? print_json(options, which, result) : print_row(options, which, result);
        std::fflush(stdout);
      }
    }
  }
}

}  // namespace gradwire::bench
