// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Feeds arbitrary bytes to every codec's decoder. It refuses them with MismatchError or fills all values; the
// sanitizers watch its bounds. What it accepts and gives back finite can be encoded again.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "gradwire/base/error.h"
#include "gradwire/compress/registry.h"

namespace compress = gradwire::compress;

namespace {

const std::vector<std::unique_ptr<compress::Codec>>& codecs() {
  static const auto all = [] {
    std::vector<std::unique_ptr<compress::Codec>> made;
    for (const compress::CodecInfo& info : compress::known_codecs()) made.push_back(compress::make_codec(info.name));
    made.push_back(compress::make_codec("int4:block=8"));
    made.push_back(compress::make_codec("top_k:ratio=0.3"));
    made.push_back(compress::make_codec("random_k:ratio=0.3,unbiased=1"));
    return made;
  }();
  return all;
}

}  // namespace

// The first three bytes choose the codec, the number of values and the step.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 3) return 0;
  const compress::Codec& codec = *codecs()[data[0] % codecs().size()];
  const std::size_t count = data[1];
  const compress::EncodeKey key{1, 2, std::uint64_t{data[2]} * 16, 3};
  // Of their own, so that the sanitizers see a step beyond either end.
  const std::vector<std::byte> bytes = [&] {
    const auto rest = std::as_bytes(std::span(data + 3, size - 3));
    return std::vector<std::byte>(rest.begin(), rest.end());
  }();
  std::vector<float> values(count);
  try {
    codec.decode(bytes, key, values);
  } catch (const gradwire::MismatchError&) {
    return 0;
  }
  std::vector<std::byte> again(codec.encoded_size(count, key.step));
  const std::size_t written = codec.encode(values, key, again);
  if (written > again.size() || (codec.is_fixed_size() && written != again.size())) __builtin_trap();
  return 0;
}
