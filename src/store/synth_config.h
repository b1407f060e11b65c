// The small files of a made-up checkpoint.
#pragma once

#include <cstdint>
#include <string>

#include "deltafin/synth.h"
#include "store/model_config.h"

namespace deltafin {

// config.json. The attention layers are spread as in the release: every fourth layer and the last
// one are MLA. layers, experts and vocab of `options` must be set.
std::string SynthConfigJson(const SynthOptions& options);

std::string SynthGenerationConfigJson(const ModelConfig& config);

// tiktoken.model with vocab_size - 256 ranks: all bytes, then strings of small letters (some after
// a space) of two and more characters. Each is one character longer than an earlier one, so that
// every token can come out of merges.
std::string SynthRanks(const ModelConfig& config);

// tokenizer_config.json: the release's sixteen named special tokens at their places after the
// ranks.
std::string SynthTokenizerConfigJson(const ModelConfig& config);

}  // namespace deltafin
