// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "bench/hooks_command.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bench/contestants.h"
#include "bench/coordinator.h"
#include "bench/sizes.h"
#include "bench/statistics.h"
#include "gradwire/base/error.h"
#include "gradwire/base/options.h"
#include "gradwire/base/strings.h"
#include "gradwire/compress/compressor.h"
#include "gradwire/hooks/registry.h"
#include "gradwire/process_group/backend_names.h"

namespace gradwire::bench {
namespace {

// What a table without --hook shows: PyTorch's names, then compressors as one would use them. The threshold sends about
// one in a hundred of N(0, 1); dgc is past its warm-up.
const std::vector<std::string> kHooks{"allreduce",
                                      "fp16_compress",
                                      "bf16_compress",
                                      "quantize_per_tensor",
                                      "quantize_per_channel",
                                      "power_sgd",
                                      "power_sgd_rank2",
                                      "power_sgd:rank=4",
                                      "batched_power_sgd",
                                      "batched_power_sgd_rank2",
                                      "noop",
                                      "fp8_e4m3",
                                      "int8",
                                      "int8:exchange=all_gather",
                                      "int4",
                                      "int2",
                                      "one_bit",
                                      "sign_sgd",
                                      "top_k",
                                      "dgc:ramp=0",
                                      "threshold:threshold=2.5",
                                      "random_k"};

std::string_view name_part(std::string_view spec) { return split_name(spec).name; }

bool has_peer(std::string_view spec) {
  for (int type = 0; type <= static_cast<int>(DDPCommHookType::NOOP); ++type) {
    if (name_of(static_cast<DDPCommHookType>(type)) == name_part(spec)) return true;
  }
  return false;
}

// Throws InvalidArgument, with the right names or options, for what is no hook.
std::string past_warm_up(const std::string& spec) {
  std::string started = spec;
  if (spec.find("power_sgd") != std::string::npos && spec.find("start=") == std::string::npos) {
    started += concat(spec.find(':') == std::string::npos ? ":" : ",", "start=2");
  }
  make_hook(started);
  return started;
}

Contestant pytorch_hooks(const HooksCommandOptions& options, const ScratchFolder& scratch, const std::string& socket) {
  Contestant made = pytorch_contestant("pytorch", options.python, "hook_worker.py", options.world, scratch, socket,
                                       {options.pin ? "pin" : "free"});
  place(options.network, made);
  return made;
}

// One hook at one size.
struct Result {
  Summary ours;
  double slowest = 0;           // median of the longest time of all ranks
  std::size_t sent = 0;         // by rank 0
  std::size_t sent_by_all = 0;  // by all ranks together
  std::optional<Summary> peer;
  Ratio ratio;                       // the peer's time over ours
  std::string no_peer;               // why there are no figures of PyTorch's
  std::optional<double> wire_bytes;  // see wire_bytes(); nothing where there is no network
};

// The bytes that all hosts together put on the network in a step, headers and acknowledgements included.
std::optional<double> wire_bytes(Coordinator& coordinator, const HooksCommandOptions& options, const std::string& hook,
                                 std::size_t bytes) {
  if (!options.network) return std::nullopt;
  constexpr int kSteps = 3;
  const std::uint64_t before = options.network->sent_bytes();
  coordinator.measure("gradwire", {bytes, kSteps, 0, hook, false});
  return static_cast<double>(options.network->sent_bytes() - before) / kSteps;
}

Result measure_hook(Coordinator& coordinator, const HooksCommandOptions& options, const std::string& hook,
                    std::size_t bytes, bool peers) {
  // Over a network a step takes long, and hardly more or less than the one before.
  const std::size_t volume = std::size_t{options.network ? 16U : 128U} << 20;
  const int iterations =
      static_cast<int>(std::clamp<std::size_t>(volume / bytes, options.network ? 2 : 5, options.network ? 20 : 100));
  // Once before the turns: PowerSGD's plain steps, every first allocation, and whether PyTorch can run it at all.
  const Measurement first{bytes, 1, 4, hook, false};
  Result result;
  coordinator.measure("gradwire", first);
  if (!peers) {
    result.no_peer = "not asked for (--peers)";
  } else if (!has_peer(hook)) {
    result.no_peer = "PyTorch has no such hook";
  } else {
    result.no_peer = refusal_of(coordinator, "pytorch", first);
  }
  result.wire_bytes = wire_bytes(coordinator, options, hook, bytes);
  const Measurement what{bytes, iterations, 1, hook, false};
  std::vector<Entrant> entrants{{"gradwire", "gradwire", what}};
  if (result.no_peer.empty()) entrants.push_back({"pytorch", "pytorch", what});
  const auto turns = measure_in_turn(coordinator, entrants, options.rounds);
  const Turns& ours = turns.at("gradwire");
  result.ours = summarize(ours.samples());
  result.slowest = median_of(ours.slowest);
  result.sent = ours.bytes;
  result.sent_by_all = ours.bytes_of_all;
  if (result.no_peer.empty()) {
    const Turns& peer = turns.at("pytorch");
    result.peer = summarize(peer.samples());
    result.ratio = ratio_of_medians(peer.blocks, ours.blocks);
  }
  return result;
}

// How many times fewer bytes all ranks send than under plain all-reduce; nothing where nothing is sent.
std::optional<double> compression(const Result& plain, const Result& hook) {
  if (hook.sent_by_all == 0) return std::nullopt;
  return static_cast<double>(plain.sent_by_all) / static_cast<double>(hook.sent_by_all);
}

// The network speed in Gbit/s below which the hook is faster than plain averaging, if what a network takes for the
// bytes came on top of the times measured here; nothing where that is at no speed, or at any.
std::optional<double> pays_below(const HooksCommandOptions& options, const Result& plain, const Result& hook) {
  const double saved = (static_cast<double>(plain.sent_by_all) - static_cast<double>(hook.sent_by_all)) / options.world;
  const double longer = hook.ours.median - plain.ours.median;
  if (saved <= 0 || hook.sent_by_all == 0 || longer <= 0) return std::nullopt;
  return 8 * saved / longer / 1e3;
}

bool is_compressor(std::string_view name) {
  const auto& known = compress::known_compressors();
  return std::any_of(known.begin(), known.end(), [&](const auto& info) { return info.name == name; });
}

// How many pieces the compressor of a hook cuts a bucket into; nothing for a hook without a compressor, and for one
// that a policy or a cast wraps.
std::optional<std::size_t> pieces_of(const HooksCommandOptions& options, const std::string& hook, std::size_t bytes) {
  if (!is_compressor(name_part(hook))) return std::nullopt;
  const std::size_t values = bytes / sizeof(float);
  try {
    const auto compressor = compress::make_compressor(hook);
    const std::size_t each = compressor->piece_values(options.network ? options.network->hosts : options.world);
    return values <= each ? 1 : (values + each - 1) / each;
  } catch (const InvalidArgument&) {  // an option of the hook that is none of the compressor
    return std::nullopt;
  }
}

// A hook's line: what was measured, and what to compare it with.
struct Row {
  std::string hook;
  std::size_t bytes;
  Result result;
  std::optional<double> compression;
  std::optional<double> pays_below;
};

void print_json(const HooksCommandOptions& options, const Row& row) {
  const Result& result = row.result;
  nlohmann::json line{{"benchmark", options.network ? "network" : "hooks"},
                      {"hook", row.hook},
                      {"backend", options.backend},
                      {"world", options.world},
                      {"bytes", row.bytes},
                      {"median_us", result.ours.median},
                      {"p10_us", result.ours.p10},
                      {"p90_us", result.ours.p90},
                      {"slowest_us", result.slowest},
                      {"samples", result.ours.samples},
                      {"sent_bytes", result.sent},
                      {"sent_bytes_of_all", result.sent_by_all},
                      {"pieces", nullptr},
                      {"compression", nullptr},
                      {"pays_below_gbit", nullptr}};
  if (const auto pieces = pieces_of(options, row.hook, row.bytes)) line["pieces"] = *pieces;
  if (row.compression) line["compression"] = *row.compression;
  if (options.network) {
    line["hosts"] = options.network->hosts;
    line["ranks_per_host"] = options.network->ranks_per_host;
    line["placement"] = options.network->placement;
    line["rate"] = options.network->rate;
    line["delay"] = options.network->delay;
    line["wire_bytes"] = *result.wire_bytes;
  }
  if (row.pays_below) line["pays_below_gbit"] = *row.pays_below;
  if (result.peer) {
    line["pytorch"] = {{"median_us", result.peer->median}, {"p10_us", result.peer->p10},
                       {"p90_us", result.peer->p90},       {"ratio", result.ratio.value},
                       {"ratio_low", result.ratio.low},    {"ratio_high", result.ratio.high}};
  } else if (options.peers) {
    line["pytorch"] = {{"none", result.no_peer}};
  }
  std::printf("%s\n", line.dump().c_str());
}

// "-" for nothing.
std::string format_number(const std::optional<double>& number, const char* unit) {
  if (!number) return "-";
  char text[32];
  std::snprintf(text, sizeof(text), "%.1f%s", *number, unit);
  return text;
}

void print_row(const HooksCommandOptions& options, const Row& row) {
  const Result& result = row.result;
  std::printf("%-31s %8s %9.3f ms [%.3f .. %.3f] %10zu %7s %11s", row.hook.c_str(), format_bytes(row.bytes).c_str(),
              result.ours.median / 1e3, result.ours.p10 / 1e3, result.ours.p90 / 1e3, result.sent,
              format_number(row.compression, "x").c_str(), format_number(row.pays_below, " Gbit/s").c_str());
  if (result.wire_bytes) std::printf(" %11.0f", *result.wire_bytes);
  if (result.peer) {
    std::printf("   %9.3f ms [%.3f .. %.3f] %8.2fx [%.2f, %.2f]", result.peer->median / 1e3, result.peer->p10 / 1e3,
                result.peer->p90 / 1e3, result.ratio.value, result.ratio.low, result.ratio.high);
  } else if (options.peers) {
    std::printf("   %s", result.no_peer.c_str());
  }
  std::printf("\n");
}

void print_head(const HooksCommandOptions& options) {
  std::printf(
      "hooks: backend %s, %d ranks, one thread each%s, %d processors; one float32 bucket of matrices of 1024 x 1024 "
      "and vectors, gradients N(0, 1)\nmedian [p10 .. p90] on rank 0, from the bucket ready to its result; bytes a "
      "rank "
      "sends a step, and how many times fewer than plain all-reduce;\nthe network speed below which it "
      "beats plain all-reduce, if what a network takes for the bytes came on top of the times here\n",
      options.backend.c_str(), options.world, options.pin ? ", pinned" : "",
      static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN)));
  if (options.network) {
    std::printf("%s; the last number: bytes that all hosts put on it a step\n", describe(*options.network).c_str());
  }
  if (options.peers)
    std::printf("then PyTorch's hook over Gloo, and its time over ours [95%% interval of the ratio]\n");
  std::printf("\n");
}

}  // namespace

void run_hooks(const HooksCommandOptions& options) {
  require_world(options.world);
  require_backend(options.backend, backend_names());
  std::vector<std::string> hooks;
  for (const std::string& hook : options.hooks.empty() ? kHooks : options.hooks) hooks.push_back(past_warm_up(hook));
  require_floats(options.bytes);
  const ScratchFolder scratch;
  const std::string socket = scratch / "coordinator";
  Coordinator coordinator(socket);
  coordinator.start(gradwire_contestant({options.backend, options.world, options.pin}, {"hook-worker"}, scratch, socket,
                                        options.network));
  if (options.peers) coordinator.start(pytorch_hooks(options, scratch, socket));
  if (!options.json) print_head(options);
  for (const std::size_t bytes : options.bytes) {
    const Result plain = measure_hook(coordinator, options, "allreduce", bytes, false);
    for (const std::string& hook : hooks) {
      const bool is_plain = hook == "allreduce" && !options.peers;
      const Result result = is_plain ? plain : measure_hook(coordinator, options, hook, bytes, options.peers);
      const Row row{hook, bytes, result, compression(plain, result), pays_below(options, plain, result)};
      options.json ? print_json(options, row) : print_row(options, row);
      std::fflush(stdout);
    }
  }
}

void list_hooks(bool json) {
  const auto said = [](std::string_view text) { return std::string(text.empty() ? "-" : text); };
  for (const HookInfo& info : known_hooks()) {
    if (json) {
      const nlohmann::json line{
          {"hook", info.name}, {"options", info.options}, {"bytes", info.bytes}, {"paper", info.paper}};
      std::printf("%s\n", line.dump().c_str());
      continue;
    }
    std::printf("%s\n    options  %s\n    %s  %s\n    paper    %s\n", std::string(info.name).c_str(),
                said(info.options).c_str(), is_compressor(info.name) ? "enc(n) " : "bytes  ",
                std::string(info.bytes).c_str(), said(info.paper).c_str());
  }
  if (json) return;
  std::printf(
      "\nBytes a rank sends a step for n float32 gradients among N ranks. Where enc(n), the bytes of an encoding, "
      "stand for them:\n(N-1) enc(n) with exchange=all_gather, about 2(N-1)/N enc(n) with exchange=all_reduce. Every "
      "hook "
      "also takes\nwarm_up=0, min=0 and wrap=none|fp16|bf16; those with an encoding also vectors=compressed|plain.\n");
}

}  // namespace gradwire::bench
