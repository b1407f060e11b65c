// What the measurements of whole sessions share. Internal to engine/.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "deltafin/bench.h"
#include "deltafin/session.h"
#include "engine/bench_median.h"
#include "engine/session_impl.h"

namespace deltafin {

// Rounds that there should be time for: where passes are slow, a measurement ends early for them.
inline constexpr int kUsualRounds = 3;

// Tokens without order, of which no two runs differ.
class RandomTokens {
 public:
  RandomTokens(int64_t vocab_size, uint64_t seed) : vocab_size_(vocab_size), state_(seed) {}
  TokenId Next() {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<TokenId>((state_ >> 33) % static_cast<uint64_t>(vocab_size_));
  }
  std::vector<TokenId> Take(int64_t count) {
    std::vector<TokenId> tokens(static_cast<size_t>(count));
    for (TokenId& token : tokens) token = Next();
    return tokens;
  }

 private:
  const int64_t vocab_size_;
  uint64_t state_;
};

class Stopwatch {
 public:
  double Seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

 private:
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

inline std::unique_ptr<SessionImpl> NewSessionImpl(Engine& engine) {
  std::unique_ptr<Session> session = engine.NewSession();
  return std::unique_ptr<SessionImpl>(static_cast<SessionImpl*>(session.release()));
}

}  // namespace deltafin
