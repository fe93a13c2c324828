// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// fp16 and bf16: every value rounded to a half type.
//
// Algorithm: convert to nearest even. fp16 overflows to infinity from 65520 on and keeps 11 significant bits; bf16
// has f32's range and 8 bits, and rounds the very largest to infinity.
//
// Bytes: exactly 2 n.
//
// Infinity and NaN: element by element, as they are.
#pragma once

#include <memory>

#include "gradwire/base/dtype.h"
#include "gradwire/compress/codec.h"

namespace gradwire::compress {

// `dtype` is f16 or bf16; throws InvalidArgument for others. Named "fp16" and "bf16".
std::unique_ptr<Codec> make_cast_codec(DType dtype);

}  // namespace gradwire::compress
