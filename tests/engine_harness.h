// What the tests that run whole models share.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "deltafin/engine.h"
#include "deltafin/session.h"

namespace deltafin {

inline std::unique_ptr<Engine> OpenEngine(const std::string& dir, int threads,
                                          const std::string& cpu_isa = "") {
  EngineOptions options;
  options.model_dir = dir;
  options.threads = threads;
  options.cpu_isa = cpu_isa;
  options.spine = SpineFormat::kBf16;  // whatever lies beside the files
  return Engine::Open(options);
}

// The logits after each of `tokens`, appended in passes of at most `chunk`.
inline std::vector<std::vector<float>> AppendAll(Session& session, std::span<const TokenId> tokens,
                                                 int64_t chunk) {
  const auto before = static_cast<int64_t>(session.tokens().size());
  std::vector<std::vector<float>> rows;
  const auto collect = [&](int64_t position, std::span<const float> logits) {
    EXPECT_EQ(position, before + static_cast<int64_t>(rows.size()));
    rows.emplace_back(logits.begin(), logits.end());
  };
  session.Append(tokens, chunk, collect, nullptr);
  EXPECT_EQ(rows.size(), tokens.size());
  return rows;
}

inline std::vector<TokenId> GenerateGreedy(Session& session, std::span<const TokenId> prompt,
                                           size_t count) {
  GenerateOptions options;
  options.max_new_tokens = static_cast<int64_t>(count);
  options.stop_at_stop_tokens = false;
  const GenerateResult result = session.Generate(prompt, options);
  EXPECT_EQ(result.tokens.size(), count);
  EXPECT_EQ(result.finish_reason, FinishReason::kLength);
  return result.tokens;
}

}  // namespace deltafin
