// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Codecs out of options that others take their own from, too.
#pragma once

#include "gradwire/base/options.h"
#include "gradwire/compress/registry.h"

namespace gradwire::compress {

// Throws InvalidArgument, which lists the right ones, for an unknown name.
const CodecInfo& find_codec(std::string_view name);

// Takes what it knows from `options` and leaves the rest.
std::unique_ptr<Codec> make_codec(std::string_view name, Options& options);

}  // namespace gradwire::compress
