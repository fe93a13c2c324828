// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Thread-local variables that every call on a group reads.
#pragma once

// In place of `thread_local`, for a pointer or a number at namespace scope. The address of a plain thread-local
// variable of a shared library comes from a function, and those calls took a tenth of a barrier's time. The address of
// such a variable is one addition. Its bytes come out of a small reserve that libraries share which are loaded after
// the start of the program (glibc keeps at least 1,664 bytes), so nothing large goes there. See the ELF model "initial
// exec" (U. Drepper, "ELF Handling For Thread-Local Storage", 2013).
#define GRADWIRE_STATIC_THREAD_LOCAL __attribute__((tls_model("initial-exec"))) thread_local
