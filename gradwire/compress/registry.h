// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Codecs by name, as programs and launch scripts give them.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "gradwire/compress/codec.h"

namespace gradwire::compress {

// Makes a codec of "NAME" or "NAME:OPTION=VALUE,OPTION=VALUE": "fp16", "int4:block=64,rounding=stochastic". Options
// that are left out have the defaults of the codec's header. Throws InvalidArgument, which lists the right ones, for an
// unknown name or option, and for a value that is out of range.
std::unique_ptr<Codec> make_codec(std::string_view description);

// One line of a help text.
struct CodecInfo {
  std::string_view name;
  std::string_view options;  // "block=256,rounding=nearest|stochastic": with their defaults
  std::string_view bytes;    // the formula, for n values
  std::string_view paper;
};

// All codecs, in the order of the documentation.
const std::vector<CodecInfo>& known_codecs();

}  // namespace gradwire::compress
