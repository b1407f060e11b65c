// The model of tests that compute many tokens.
#pragma once

#include <string>

#include "deltafin/synth.h"
#include "store/testing/temp_dir.h"

namespace deltafin {

// A made-up one with k3-nano's widths and a third of its layers, for the life of the program: what
// it says does not matter to them.
inline std::string SmallModelDir() {
  static const TempDir folder;
  static const std::string dir = [] {
    SynthOptions options;
    options.dir = folder / "model";
    options.like = SynthLike::kNano;
    options.layers = 4;
    options.experts = 16;
    options.vocab = 1'024;
    options.no_vision = true;
    WriteSynth(options);
    return options.dir;
  }();
  return dir;
}

}  // namespace deltafin
