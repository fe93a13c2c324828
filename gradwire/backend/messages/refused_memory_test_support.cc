// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// A file of its own, so that compilers see no allocation in which one of these meets another's counterpart.
#include "gradwire/backend/messages/refused_memory_test_support.h"

#include <cstddef>
#include <cstdlib>
#include <new>

namespace gradwire::messages {

thread_local long allocations_before_a_refusal = -1;

}  // namespace gradwire::messages

void* operator new(std::size_t bytes) {
  long& left = gradwire::messages::allocations_before_a_refusal;
  if (left >= 0 && left-- == 0) throw std::bad_alloc();
  if (void* const memory = std::malloc(bytes == 0 ? 1 : bytes)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
