// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// What queues the kernels of the codecs on a stream of CUDA. Encodings have the bytes of gradwire/compress/*_codec.h,
// and decoded values have the bits.
//
// All functions are thread-safe, wait for nothing, and return a cudaError_t as a number (0: queued). All pointers are
// memory of the current device: of the CUDA runtime that these functions link, which is not torch's. So a caller calls
// use_device() first, on the same thread. Values are float32, aligned to 4 bytes. The bytes that an encode_*() writes
// are aligned to 16 bytes, those that a decode_*() reads have any alignment. `count` is not 0. A decode_*() writes the
// decoded values, or sum + decoded value where `sum` is not null.
#pragma once

#include <cstddef>
#include <cstdint>

#include "gradwire/hooks/device/cuda/formats_internal.h"

struct CUstream_st;

namespace gradwire::cuda {

using Stream = CUstream_st*;  // cudaStream_t

// fp16, bf16.
enum class Half { f16, bf16 };
int encode_cast(Half to, const float* values, std::size_t count, std::uint8_t* bytes, Stream stream);
int decode_cast(Half from, const std::uint8_t* bytes, std::size_t count, const float* sum, float* values,
                Stream stream);

// int8, int4, int2. A block is a multiple of 8.
int encode_integer(const IntegerFormat& format, Rows rows, const float* values, std::uint8_t* bytes, Stream stream);
int decode_integer(const IntegerFormat& format, Rows rows, const std::uint8_t* bytes, const float* sum, float* values,
                   Stream stream);

// fp8_e4m3, fp8_e5m2.
int encode_fp8(const Fp8Format& format, Rows rows, const float* values, std::uint8_t* bytes, Stream stream);
int decode_fp8(const Fp8Format& format, Rows rows, const std::uint8_t* bytes, const float* sum, float* values,
               Stream stream);

// one_bit. A block is a multiple of 8.
int encode_one_bit(Rows rows, const float* values, std::uint8_t* bytes, Stream stream);
int decode_one_bit(Rows rows, const std::uint8_t* bytes, const float* sum, float* values, Stream stream);

// sign.
int encode_sign(const float* values, std::size_t count, std::uint8_t* bytes, Stream stream);
int decode_sign(const std::uint8_t* bytes, std::size_t count, const float* sum, float* values, Stream stream);

// top_k, dgc: `kept` pairs, from 1 to count; count is below 2^32. `workspace` has top_k_workspace(count) bytes, aligned
// to 16 bytes, and anything in it.
std::size_t top_k_workspace(std::size_t count);
int encode_top_k(const float* values, std::size_t count, std::size_t kept, void* workspace, std::uint8_t* bytes,
                 Stream stream);
int decode_pairs(const std::uint8_t* bytes, std::size_t pairs, std::size_t count, const float* sum, float* values,
                 Stream stream);

// Makes the device with this number the calling thread's current device. The memory of a kernel's call is there, so the
// device has a context already, and no other device gets one.
int use_device(int device);

// Whether this build has kernels that the device with this number can run. `unknown`: CUDA had an error that may not
// come again, such as one of an earlier call or of a lack of memory. Makes the device current, as use_device() does.
enum class Runs : char { unknown, yes, no };
Runs runs_on(int device);
// The text of an error that one of the functions above has returned.
const char* error_text(int error);

// Functions with the contracts above: CUDA's, or those of tests, which do the same on the host.
struct Launches {
  decltype(&cuda::use_device) use_device;
  decltype(&cuda::encode_cast) encode_cast;
  decltype(&cuda::decode_cast) decode_cast;
  decltype(&cuda::encode_integer) encode_integer;
  decltype(&cuda::decode_integer) decode_integer;
  decltype(&cuda::encode_fp8) encode_fp8;
  decltype(&cuda::decode_fp8) decode_fp8;
  decltype(&cuda::encode_one_bit) encode_one_bit;
  decltype(&cuda::decode_one_bit) decode_one_bit;
  decltype(&cuda::encode_sign) encode_sign;
  decltype(&cuda::decode_sign) decode_sign;
  decltype(&cuda::top_k_workspace) top_k_workspace;
  decltype(&cuda::encode_top_k) encode_top_k;
  decltype(&cuda::decode_pairs) decode_pairs;
  decltype(&cuda::error_text) error_text;
};

// CUDA's. For builds with the kernels: only the kernels' library has these functions.
inline constexpr Launches kCudaLaunches{&use_device,     &encode_cast,  &decode_cast, &encode_integer,
                                        &decode_integer, &encode_fp8,   &decode_fp8,  &encode_one_bit,
                                        &decode_one_bit, &encode_sign,  &decode_sign, &top_k_workspace,
                                        &encode_top_k,   &decode_pairs, &error_text};

}  // namespace gradwire::cuda
