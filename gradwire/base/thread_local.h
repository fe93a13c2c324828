// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Thread-local variables that every call on a group reads.
#pragma once

// In place of `thread_local`, at namespace scope. A shared library gets the address of a plain thread-local variable
// from a function, which took a tenth of the time of a barrier; the address of such a variable is one addition.
//
// All thread-local variables of a library that has one of these come out of a small reserve, which the libraries share
// that are loaded after the start of the program (glibc keeps at least 1,664 bytes). gradwire's take 300 bytes; a large
// one must not be added, nor a static library that has large ones be linked (scripts/check_thread_locals.py looks). The
// model is "initial exec" in U. Drepper, "ELF Handling For Thread-Local Storage", 2013.
#define GRADWIRE_STATIC_THREAD_LOCAL __attribute__((tls_model("initial-exec"))) thread_local
