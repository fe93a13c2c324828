// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// All that a program without torch needs of gradwire::core: ranks, collectives and messages on raw memory, stores,
// compression. Needs C++20, which the target gradwire::core brings with it. Programs with torch include
// gradwire/gradwire.h.
#pragma once

#include "gradwire/backend/backend.h"
#include "gradwire/backend/info.h"
#include "gradwire/backend/job/find_rendezvous.h"
#include "gradwire/backend/job/job.h"
#include "gradwire/backend/registry.h"
#include "gradwire/base/deadline.h"
#include "gradwire/base/dtype.h"
#include "gradwire/base/error.h"
#include "gradwire/base/log.h"
#include "gradwire/base/reduce_op.h"
#include "gradwire/base/trace.h"
#include "gradwire/compress/channel_transport.h"
#include "gradwire/compress/codec.h"
#include "gradwire/compress/compressor.h"
#include "gradwire/compress/exchange.h"
#include "gradwire/compress/memory.h"
#include "gradwire/compress/registry.h"
#include "gradwire/compress/transport.h"
#include "gradwire/store/file_store.h"
#include "gradwire/store/forwarding_store.h"
#include "gradwire/store/hash_store.h"
#include "gradwire/store/prefix_store.h"
#include "gradwire/store/store.h"
#include "gradwire/store/tcp_store.h"
