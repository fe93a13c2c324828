// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/compress/registry.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "gradwire/base/error.h"
#include "gradwire/base/nearest.h"
#include "gradwire/base/options.h"
#include "gradwire/base/strings.h"
#include "gradwire/compress/cast_codec.h"
#include "gradwire/compress/dgc_codec.h"
#include "gradwire/compress/fp8_codec.h"
#include "gradwire/compress/integer_codec.h"
#include "gradwire/compress/one_bit_codec.h"
#include "gradwire/compress/random_k_codec.h"
#include "gradwire/compress/registry_internal.h"
#include "gradwire/compress/sign_codec.h"
#include "gradwire/compress/threshold_codec.h"
#include "gradwire/compress/top_k_codec.h"

namespace gradwire::compress {
namespace {

std::unique_ptr<Codec> make_integer(int bits, Options& options) {
  IntegerOptions made;
  made.block = options.number("block", made.block);
  made.rounding = options.choice("rounding", {"nearest", "stochastic"}) == 0 ? Rounding::nearest : Rounding::stochastic;
  return make_integer_codec(bits, made);
}

std::unique_ptr<Codec> make_fp8(Fp8Format format, Options& options) {
  Fp8Options made;
  made.block = options.number("block", made.block);
  return make_fp8_codec(format, made);
}

// A codec all of whose options are numbers: each by its name and its place.
template <class Made, class... Numbers>
auto with_numbers(std::unique_ptr<Codec> (*make)(const Made&), std::pair<const char*, Numbers Made::*>... fields) {
  return [=](Options& options) {
    Made made;
    ((made.*fields.second = options.number(fields.first, made.*fields.second)), ...);
    return make(made);
  };
}

std::unique_ptr<Codec> make_random_k(Options& options) {
  RandomKOptions made;
  made.ratio = options.number("ratio", made.ratio);
  made.unbiased = options.flag("unbiased", made.unbiased);
  return make_random_k_codec(made);
}

struct Row {
  CodecInfo info;
  std::function<std::unique_ptr<Codec>(Options&)> make;
};

const std::vector<Row>& rows() {
  static const std::vector<Row> table{
      {{"fp16", "", "2n", ""}, [](Options&) { return make_cast_codec(DType::f16); }},
      {{"bf16", "", "2n", ""}, [](Options&) { return make_cast_codec(DType::bf16); }},
      {{"fp8_e4m3", "block=1024", "4 ceil(n/block) + n", "Micikevicius et al. 2022"},
       [](Options& options) { return make_fp8(Fp8Format::e4m3, options); }},
      {{"fp8_e5m2", "block=1024", "4 ceil(n/block) + n", "Micikevicius et al. 2022"},
       [](Options& options) { return make_fp8(Fp8Format::e5m2, options); }},
      {{"int8", "block=256,rounding=nearest|stochastic", "4 ceil(n/block) + n", "Alistarh et al. 2017"},
       [](Options& options) { return make_integer(8, options); }},
      {{"int4", "block=256,rounding=nearest|stochastic", "4 ceil(n/block) + ceil(n/2)", "Alistarh et al. 2017"},
       [](Options& options) { return make_integer(4, options); }},
      {{"int2", "block=256,rounding=nearest|stochastic", "4 ceil(n/block) + ceil(n/4)", "Wen et al. 2017"},
       [](Options& options) { return make_integer(2, options); }},
      {{"one_bit", "block=4096", "4 ceil(n/block) + ceil(n/8)", "Karimireddy et al. 2019"},
       with_numbers(make_one_bit_codec, std::pair("block", &OneBitOptions::block))},
      {{"sign", "", "1 + ceil(n/8)", "Bernstein et al. 2018"}, [](Options&) { return make_sign_codec(); }},
      {{"top_k", "ratio=0.01", "8 ceil(ratio n)", "Aji and Heafield 2017"},
       with_numbers(make_top_k_codec, std::pair("ratio", &TopKOptions::ratio))},
      {{"dgc", "ratio=0.001,ramp=1000", "8 ceil(r n), r from 1/4 to ratio", "Lin et al. 2018"},
       with_numbers(make_dgc_codec, std::pair("ratio", &DgcOptions::ratio), std::pair("ramp", &DgcOptions::ramp))},
      {{"threshold", "threshold=0.01", "8 for each value that reaches it", "Strom 2015"},
       with_numbers(make_threshold_codec, std::pair("threshold", &ThresholdOptions::threshold))},
      {{"random_k", "ratio=0.01,unbiased=0|1", "4 ceil(ratio n) + 4", "Stich et al. 2018"}, make_random_k}};
  return table;
}

const Row& find_row(std::string_view name) {
  const auto row =
      std::find_if(rows().begin(), rows().end(), [&](const Row& known) { return known.info.name == name; });
  if (row != rows().end()) return *row;
  std::vector<std::string> names;
  for (const Row& known : rows()) names.emplace_back(known.info.name);
  throw InvalidArgument(
      concat("unknown codec '", name, "'", did_you_mean(name, names), "; known are ", join(names, ", ")));
}

}  // namespace

const CodecInfo& find_codec(std::string_view name) { return find_row(name).info; }

std::unique_ptr<Codec> make_codec(std::string_view name, Options& options) { return find_row(name).make(options); }

std::unique_ptr<Codec> make_codec(std::string_view description) {
  const NamedOptions parts = split_name(description);
  const Row& row = find_row(parts.name);
  Options options(concat("codec ", parts.name), parts.options);
  auto codec = row.make(options);
  options.require_all_taken(row.info.options);
  return codec;
}

const std::vector<CodecInfo>& known_codecs() {
  static const std::vector<CodecInfo> infos = [] {
    std::vector<CodecInfo> list;
    for (const Row& row : rows()) list.push_back(row.info);
    return list;
  }();
  return infos;
}

}  // namespace gradwire::compress
