// The recorded oracles in tests/data (see the README files there), read into plain structs. Traces
// of both have the names that reference_model.h lists.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "reference/reference_model.h"

namespace deltafin::reference {

// tests/data/official: the released code in float64, rounded to float32.
struct OfficialPrompt {
  std::string name;
  std::vector<TokenId> ids;
  Vec logits;  // [positions, vocab]
  double logit_std = 0;
  double min_router_margin = 0;     // over the prompt and all greedy ids but the last
  std::vector<TokenId> greedy_ids;  // empty: not recorded
  Vec greedy_margins;
  Vec greedy_logits;   // [greedy ids, vocab]
  NamedTensors trace;  // empty: not recorded
  // By layer (0-based) and position, experts ascending; empty: not recorded.
  std::vector<std::vector<Routing>> routing;
};

struct OfficialOracle {
  int64_t vocab_size = 0;
  std::vector<OfficialPrompt> prompts;
};

std::string OfficialModelDir();
OfficialOracle LoadOfficialOracle();

// tests/data/nano, prompts.json with logits and router picks.
struct NanoPrompt {
  int64_t id = 0;
  std::vector<TokenId> ids;
  std::vector<TokenId> greedy_ids;
  Vec greedy_margins;
  double f32_max_abs_logit_diff = 0;
  Vec logits;  // [ids, vocab]; empty: not recorded
  // [num_layers][prompt + greedy]; layer 0 is dense and has none.
  std::vector<std::vector<Routing>> routing;

  // Of all layers, at a position of prompt + greedy.
  double MinRouterMargin(int64_t position) const;
  std::vector<TokenId> AllIds() const;  // prompt + greedy
};

std::vector<NanoPrompt> LoadNanoPrompts();

struct NanoTrace {
  std::vector<TokenId> ids;
  int64_t half = 0;  // tokens before the *_half states
  // Everything in the file except ids, with router_idx as numbers.
  NamedTensors tensors;
};

NanoTrace LoadNanoTrace();

struct NanoNll {
  std::vector<TokenId> ids;
  Vec nll;  // [ids - 1]: of token i + 1 after tokens 0..i
  std::vector<TokenId> argmax;
  double mean_nll = 0;
  // [num_layers][position]: experts only.
  std::vector<std::vector<std::vector<int>>> experts;
};

NanoNll LoadNanoNll();

}  // namespace deltafin::reference
