// Which model a saved state belongs to.
#pragma once

#include "io/hash.h"
#include "store/checkpoint.h"

namespace deltafin {

// Of config.json, the tokenizer's files where there are any, every shard's size and header (names,
// types, shapes and places of all tensors), and a sample of the weights: the last norm and the bias
// of every router, which no two trainings have in common. Reads a few kilobytes a layer. Throws
// Error for a failed read.
Hash128 IdentityOf(FileSystem& fs, const Checkpoint& checkpoint);

}  // namespace deltafin
