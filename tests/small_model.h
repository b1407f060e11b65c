// The model of tests that compute much, or fetch it: what it says does not matter to them.
#pragma once

#include <string>

#include "deltafin/synth.h"
#include "store/testing/temp_dir.h"

namespace deltafin {

// Made up, with k3-nano's widths and a third of its layers; for the life of the program.
inline const std::string& SmallModelDir() {
  static const TempDir dir;
  static const std::string path = [] {
    SynthOptions options;
    options.dir = dir / "model";
    options.like = SynthLike::kNano;
    options.layers = 4;
    options.experts = 16;
    options.vocab = 512;
    options.no_vision = true;
    options.threads = 1;
    WriteSynth(options);
    return options.dir;
  }();
  return path;
}

}  // namespace deltafin
