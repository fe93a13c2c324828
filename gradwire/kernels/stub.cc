#include "gradwire/kernels/dispatch_internal.h"
namespace gradwire::kernels {
ReduceLoop find_reduce_half(std::int64_t) noexcept { return nullptr; }
ReduceLoop find_reduce_integer(std::int64_t) noexcept { return nullptr; }
CastLoop find_cast(std::int64_t) noexcept { return nullptr; }
}
