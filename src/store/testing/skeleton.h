// Checkpoints without weights, for any configuration.
#pragma once

#include <string>

#include "store/synth_layout.h"

namespace deltafin {

// Writes config.json (with the text `config_json`, from which `config` was parsed), the index and
// sparse shard files of their true size into the folder `dir`, which must exist. No vision. Throws
// Error(kIo).
void WriteSkeleton(const ModelConfig& config, const std::string& config_json,
                   const std::string& dir);

}  // namespace deltafin
