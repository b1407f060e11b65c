// Which model a saved state belongs to.
#pragma once

#include "io/hash.h"
#include "store/checkpoint.h"

namespace deltafin {

// Of config.json, and of every shard its size and its header (names, types, shapes and places of
// all tensors). Reads no weights, so it cannot tell two trainings with equal headers and sizes
// apart. Throws Error for a failed read.
Hash128 IdentityOf(FileSystem& fs, const Checkpoint& checkpoint);

}  // namespace deltafin
