// What an engine takes from the machine: which spine, how much memory. Internal to engine/.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "deltafin/engine.h"
#include "engine/gpu_choice.h"
#include "model/cache_spill.h"
#include "store/checkpoint.h"
#include "store/memory_plan.h"
#include "store/spine_source.h"

namespace deltafin {

// `note` gets a line for people when a conversion was left aside. Throws Error when int8 is asked
// for and is not there, or is damaged.
SpineSource ChooseSpine(FileSystem& files, const Checkpoint& checkpoint, SpineFormat wanted,
                        std::string* note);

// Positions of a pass whose logits may be wanted at a time: their room is bounded.
int64_t MaxLogitsPositions(const ModelConfig& config, int64_t positions);

// How the latent caches of `options` spill to a file; empty: they are in RAM, all of them.
std::optional<CacheSpillOptions> ChooseCacheSpill(const ModelConfig& config,
                                                  const EngineOptions& options,
                                                  int compute_threads);

// What a GPU that computes whole layers takes of its memory besides weights, for `draft_bytes` as
// below: states, with their latent caches where these are in RAM, and working memory.
uint64_t GpuWorkingBytes(const ModelConfig& config, const EngineOptions& options,
                         const std::optional<CacheSpillOptions>& spill, uint64_t draft_bytes);
// And of the host's, for what was added to states that stay on the GPU.
uint64_t GpuJournalBytes(const ModelConfig& config, const EngineOptions& options);

// Measures what the process takes already, and plans the rest. Call it when everything that stays
// (indexes, tokenizer) has been loaded and before the first thread is started. `all_threads` counts
// those that read, too; `draft_bytes` is what drafts take besides the state of a session, `gpu` may
// be none.
MemoryPlan PlanEngine(const Checkpoint& checkpoint, const SpineSource& spine,
                      const EngineOptions& options, int all_threads, int compute_threads,
                      const std::optional<CacheSpillOptions>& spill, uint64_t draft_bytes,
                      const GpuChoice& gpu);

}  // namespace deltafin
