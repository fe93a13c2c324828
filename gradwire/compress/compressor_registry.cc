// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "gradwire/base/error.h"
#include "gradwire/base/nearest.h"
#include "gradwire/base/strings.h"
#include "gradwire/compress/compressor.h"
#include "gradwire/compress/registry_internal.h"

namespace gradwire::compress {
namespace {

const std::vector<std::string>& known_memories() {
  static const std::vector<std::string> names{"none", "error_feedback", "ef21", "momentum"};
  return names;
}

// What goes with a codec unless told otherwise: what is biased needs a memory; what sends indices grows when parts are
// added, so it goes to everyone as it is; random-k takes the same places on all ranks, so that sums are as sparse as
// their parts.
struct Defaults {
  std::string_view codec;
  std::string_view memory;
  std::string_view exchange;
};
constexpr Defaults kDefaults[] = {
    {"fp16", "none", "all_reduce"},
    {"bf16", "none", "all_reduce"},
    {"fp8_e4m3", "none", "all_reduce"},
    {"fp8_e5m2", "none", "all_reduce"},
    {"int8", "none", "all_reduce"},
    {"int4", "error_feedback", "all_reduce"},
    {"int2", "error_feedback", "all_reduce"},
    {"one_bit", "error_feedback", "all_reduce"},
    {"sign", "none", "all_reduce"},
    {"top_k", "error_feedback", "all_gather"},
    {"dgc", "momentum", "all_gather"},
    {"threshold", "error_feedback", "all_gather"},
    {"random_k", "error_feedback", "all_reduce"},
};

const Defaults& defaults_of(std::string_view codec) {
  const auto* found = std::find_if(std::begin(kDefaults), std::end(kDefaults),
                                   [&](const Defaults& defaults) { return defaults.codec == codec; });
  GRADWIRE_CHECK(found != std::end(kDefaults));
  return *found;
}

// The words with the default in front.
std::vector<std::string> with_first(std::vector<std::string> words, std::string_view first) {
  std::rotate(words.begin(), std::find(words.begin(), words.end(), first), words.end());
  return words;
}

std::string option_list(const CodecInfo& codec, const Defaults& defaults) {
  return concat(codec.options, codec.options.empty() ? "" : ",",
                "memory=", join(with_first(known_memories(), defaults.memory), "|"),
                ",exchange=", join(with_first(known_exchanges(), defaults.exchange), "|"),
                ",seed=0; with memory=momentum: momentum=0.9,clip=0");
}

std::unique_ptr<Memory> make_memory(std::string_view name, Options& options) {
  if (name == "momentum") {
    MomentumOptions made;
    made.momentum = options.number("momentum", made.momentum);
    made.clip = options.number("clip", made.clip);
    return make_momentum_memory(made);
  }
  if (name == "error_feedback") return make_error_feedback_memory();
  if (name == "ef21") return make_ef21_memory();
  return make_no_memory();
}

constexpr std::string_view kSignSgd = "sign_sgd";

void require_known(std::string_view name) {
  std::vector<std::string> names;
  for (const CompressorInfo& info : known_compressors()) {
    if (info.name == name) return;
    names.emplace_back(info.name);
  }
  throw InvalidArgument(
      concat("unknown compressor '", name, "'", did_you_mean(name, names), "; known are ", join(names, ", ")));
}

}  // namespace

std::unique_ptr<Compressor> make_compressor(std::string_view description) {
  const NamedOptions parts = split_name(description);
  Options options(concat("compressor ", parts.name), parts.options);
  if (parts.name == kSignSgd) {
    const auto seed = options.number("seed", std::uint64_t{0});
    options.require_all_taken("seed=0");
    return make_compressor(concat("sign:memory=none,exchange=all_reduce,seed=", seed));
  }
  require_known(parts.name);
  const CodecInfo& info = find_codec(parts.name);
  const Defaults& defaults = defaults_of(info.name);
  auto codec = make_codec(info.name, options);
  // What a memory would be owed has no meaning where the scale is lost.
  const auto memories = with_first(known_memories(), codec->keeps_scale() ? defaults.memory : "none");
  auto memory = make_memory(memories[options.choice("memory", memories)], options);
  const auto exchanges = with_first(known_exchanges(), defaults.exchange);
  auto exchange = make_exchange(exchanges[options.choice("exchange", exchanges)]);
  const auto seed = options.number("seed", std::uint64_t{0});
  options.require_all_taken(option_list(info, defaults));
  return std::make_unique<Compressor>(std::move(codec), std::move(memory), std::move(exchange), seed);
}

const std::vector<CompressorInfo>& known_compressors() {
  static const std::vector<CompressorInfo> infos = [] {
    std::vector<CompressorInfo> list;
    for (const CodecInfo& codec : known_codecs()) {
      const Defaults& defaults = defaults_of(codec.name);
      list.push_back(
          {codec.name, option_list(codec, defaults), codec.bytes, defaults.memory, defaults.exchange, codec.paper});
    }
    const CodecInfo& sign = find_codec("sign");
    list.push_back({kSignSgd, "seed=0", sign.bytes, "none", "all_reduce", sign.paper});
    return list;
  }();
  return infos;
}

}  // namespace gradwire::compress
