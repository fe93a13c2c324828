// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/compress/registry.h"

#include <algorithm>
#include <charconv>
#include <functional>
#include <map>

#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "gradwire/compress/cast_codec.h"
#include "gradwire/compress/fp8_codec.h"
#include "gradwire/compress/integer_codec.h"
#include "gradwire/compress/one_bit_codec.h"
#include "gradwire/compress/random_k_codec.h"
#include "gradwire/compress/threshold_codec.h"
#include "gradwire/compress/top_k_codec.h"

namespace gradwire::compress {
namespace {

// The options of one description. Each is taken once; what is left at the end is unknown.
class Options {
 public:
  Options(std::string_view codec, std::string_view text) : codec_(codec) {
    while (!text.empty()) {
      const std::size_t comma = std::min(text.find(','), text.size());
      const std::string_view option = text.substr(0, comma);
      const std::size_t equals = option.find('=');
      if (equals == std::string_view::npos || equals == 0) {
        throw InvalidArgument(concat("codec ", codec_, ": '", option, "' is no OPTION=VALUE"));
      }
      values_[std::string(option.substr(0, equals))] = std::string(option.substr(equals + 1));
      text.remove_prefix(std::min(comma + 1, text.size()));
    }
  }

  // The option as a number of `fallback`'s type.
  template <class T>
  T number(const std::string& name, T fallback) {
    const auto option = values_.find(name);
    if (option == values_.end()) return fallback;
    const std::string text = option->second;
    values_.erase(option);
    T value{};
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size()) {
      throw InvalidArgument(concat("codec ", codec_, ": option ", name, "=", text, " is no number that fits"));
    }
    return value;
  }

  // The option as one of `words`; the index of its value.
  std::size_t choice(const std::string& name, const std::vector<std::string>& words) {
    const auto option = values_.find(name);
    if (option == values_.end()) return 0;
    const auto word = std::find(words.begin(), words.end(), option->second);
    if (word == words.end()) {
      throw InvalidArgument(
          concat("codec ", codec_, ": option ", name, "=", option->second, " must be one of ", join(words, ", ")));
    }
    values_.erase(option);
    return static_cast<std::size_t>(word - words.begin());
  }

  void require_all_taken(std::string_view known) const {
    if (values_.empty()) return;
    throw InvalidArgument(concat("codec ", codec_, " has no option '", values_.begin()->first, "'; ",
                                 known.empty() ? std::string("it has none") : concat("its options are ", known)));
  }

 private:
  std::string codec_;
  std::map<std::string, std::string> values_;
};

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

std::unique_ptr<Codec> make_one_bit(Options& options) {
  OneBitOptions made;
  made.block = options.number("block", made.block);
  return make_one_bit_codec(made);
}

std::unique_ptr<Codec> make_top_k(Options& options) {
  TopKOptions made;
  made.ratio = options.number("ratio", made.ratio);
  return make_top_k_codec(made);
}

std::unique_ptr<Codec> make_threshold(Options& options) {
  ThresholdOptions made;
  made.threshold = options.number("threshold", made.threshold);
  return make_threshold_codec(made);
}

std::unique_ptr<Codec> make_random_k(Options& options) {
  RandomKOptions made;
  made.ratio = options.number("ratio", made.ratio);
  made.unbiased = options.choice("unbiased", {"0", "1"}) == 1;
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
      {{"one_bit", "block=4096", "4 ceil(n/block) + ceil(n/8)", "Karimireddy et al. 2019"}, make_one_bit},
      {{"top_k", "ratio=0.01", "8 ceil(ratio n)", "Aji and Heafield 2017"}, make_top_k},
      {{"threshold", "threshold=0.01", "8 for each value that reaches it", "Strom 2015"}, make_threshold},
      {{"random_k", "ratio=0.01,unbiased=0|1", "4 ceil(ratio n) + 4", "Stich et al. 2018"}, make_random_k}};
  return table;
}

}  // namespace

std::unique_ptr<Codec> make_codec(std::string_view description) {
  const std::size_t colon = std::min(description.find(':'), description.size());
  const std::string_view name = description.substr(0, colon);
  const auto row =
      std::find_if(rows().begin(), rows().end(), [&](const Row& known) { return known.info.name == name; });
  if (row == rows().end()) {
    std::vector<std::string> names;
    for (const Row& known : rows()) names.emplace_back(known.info.name);
    throw InvalidArgument(concat("unknown codec '", name, "'; known are ", join(names, ", ")));
  }
  Options options(name, description.substr(std::min(colon + 1, description.size())));
  auto codec = row->make(options);
  options.require_all_taken(row->info.options);
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
