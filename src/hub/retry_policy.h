// What becomes of a request that failed: again, from another address, or not at all.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <random>
#include <string>

#include "deltafin/error.h"
#include "deltafin/hub.h"
#include "hub/http_response.h"
#include "store/presence_map.h"

namespace deltafin {

enum class Verdict : uint8_t {
  kGood,
  kFollow,         // to HttpResponse::location
  kRetry,          // the network, or a server that is busy or broken: until patience ends
  kRetryFewTimes,  // an answer that should not be: another server may do better
  kResolveAgain,   // a signed address that has expired: ask the hub for a new one, a few times
  kGiveUp,
};

struct Judgement {
  Verdict verdict = Verdict::kGood;
  ErrorCode code = ErrorCode::kNetwork;
  std::string reason;                         // "403 Forbidden" and what it means
  std::optional<double> retry_after_seconds;  // the server's wish
  bool for_all = false;                       // the server wants fewer requests of all kinds
};

// What was asked for.
struct Asked {
  std::optional<ByteRange> range;  // else the whole file
  std::optional<uint64_t> file_bytes;
  bool of_hub = true;  // not of an address that the hub redirected to
  bool with_token = false;
};

// Judges an answer by its head: nothing of the body need be read.
Judgement JudgeResponse(const HttpResponse& response, const Asked& asked);

// When a request is tried again, and when it is not. Not thread-safe.
class RetryState {
 public:
  using Clock = std::chrono::steady_clock;

  // Bytes came: everything begins anew.
  void OnProgress() { *this = {}; }
  // How long to wait before the next try; empty when enough was tried.
  std::optional<double> NextDelay(const HubOptions& options, const Judgement& judgement,
                                  Clock::time_point now, std::mt19937_64& random);
  int attempts() const { return attempts_; }

 private:
  int attempts_ = 0;          // that failed in a row
  int limited_attempts_ = 0;  // of them, those of the few times
  Clock::time_point first_failure_{};
};

}  // namespace deltafin
