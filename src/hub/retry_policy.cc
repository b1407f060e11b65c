#include "hub/retry_policy.h"

#include <algorithm>
#include <cmath>

#include "base/format.h"

namespace deltafin {
namespace {

constexpr int kFewTimes = 5;
// A wish of a server beyond this is taken for a mistake.
constexpr double kMaxRetryAfter = 3600;

std::string StatusName(const HttpResponse& r) {
  std::string name = std::to_string(r.status);
  switch (r.status) {
    case 200:
      name += " (the whole file)";
      break;
    case 401:
      name += " Unauthorized";
      break;
    case 403:
      name += " Forbidden";
      break;
    case 404:
      name += " Not Found";
      break;
    case 408:
      name += " Request Timeout";
      break;
    case 410:
      name += " Gone";
      break;
    case 416:
      name += " Range Not Satisfiable";
      break;
    case 429:
      name += " Too Many Requests";
      break;
    case 500:
      name += " Internal Server Error";
      break;
    case 502:
      name += " Bad Gateway";
      break;
    case 503:
      name += " Service Unavailable";
      break;
    case 504:
      name += " Gateway Timeout";
      break;
    default:
      break;
  }
  if (!r.error_message.empty()) name += ": " + r.error_message;
  return name;
}

std::string RangeName(const std::optional<ContentRange>& range) {
  if (!range) return "no valid Content-Range";
  return format("bytes {}-{} of {}", range->first, range->last,
                range->total ? std::to_string(*range->total) : "?");
}

Judgement JudgePartial(const HttpResponse& response, const Asked& asked) {
  const std::optional<ContentRange>& got = response.content_range;
  if (!asked.range) {
    return {Verdict::kRetryFewTimes, ErrorCode::kNetwork, "answered a part of the file", {}, false};
  }
  const bool right_range =
      got && got->first == asked.range->offset && got->last == asked.range->end() - 1;
  const bool right_total =
      !asked.file_bytes || !got || !got->total || *got->total == *asked.file_bytes;
  const bool right_length =
      !response.content_length || *response.content_length == asked.range->bytes;
  if (right_range && right_total && right_length) return {};
  std::string reason =
      format("answered {} where bytes {}-{}{} were asked for", RangeName(got), asked.range->offset,
             asked.range->end() - 1,
             asked.file_bytes ? format(" of {}", *asked.file_bytes) : std::string());
  if (right_range && !right_total) reason += ": the file on the server is another one";
  if (right_range && right_total) {
    reason += format(", with a length of {}", *response.content_length);
  }
  return {Verdict::kRetryFewTimes, ErrorCode::kNetwork, reason, {}, false};
}

Judgement JudgeWhole(const HttpResponse& response, const Asked& asked) {
  if (asked.range) {
    return {Verdict::kRetryFewTimes,
            ErrorCode::kNetwork,
            "answered 200 with the whole file where a range was asked for: this server, or a proxy "
            "before it, has no Range requests",
            {},
            false};
  }
  if (asked.file_bytes && response.content_length &&
      *response.content_length != *asked.file_bytes) {
    return {Verdict::kRetryFewTimes,
            ErrorCode::kNetwork,
            format("announced {} bytes, expected {}", *response.content_length, *asked.file_bytes),
            {},
            false};
  }
  return {};
}

Judgement JudgeRefusal(const HttpResponse& response, const Asked& asked) {
  Judgement j{Verdict::kGiveUp, ErrorCode::kNetwork, StatusName(response), {}, false};
  switch (response.status) {
    case 401:
    case 403:
      if (!asked.of_hub) {
        j.verdict = Verdict::kResolveAgain;
        j.reason += " (the signed address may have expired)";
      } else if (asked.with_token) {
        j.reason +=
            "; the token (HF_TOKEN) may not read this: accept the model's terms on its "
            "page, or use another token";
      } else {
        j.reason += "; it may need a token: set HF_TOKEN, or accept the model's terms on its page";
      }
      break;
    case 404:
    case 410:
      j.code = ErrorCode::kNotFound;
      if (!asked.of_hub) j.verdict = Verdict::kResolveAgain;
      break;
    case 416:
      j.verdict = Verdict::kResolveAgain;
      j.reason += ": the file on the server is shorter than expected";
      break;
    case 408:
    case 425:
    case 429:
      j.verdict = Verdict::kRetry;
      j.retry_after_seconds = response.retry_after_seconds;
      j.for_all = response.status == 429;
      break;
    default:
      if (response.status >= 500) {
        j.verdict = Verdict::kRetry;
        j.retry_after_seconds = response.retry_after_seconds;
      } else if (response.status < 400) {
        j.verdict = Verdict::kRetryFewTimes;
      }
  }
  return j;
}

}  // namespace

Judgement JudgeResponse(const HttpResponse& response, const Asked& asked) {
  if (response.is_redirect()) {
    if (response.location.empty()) {
      return {Verdict::kRetryFewTimes,
              ErrorCode::kNetwork,
              format("answered {} without saying where to", response.status),
              {},
              false};
    }
    return {Verdict::kFollow, ErrorCode::kNetwork, "", {}, false};
  }
  if (response.status == 206) return JudgePartial(response, asked);
  if (response.status == 200) return JudgeWhole(response, asked);
  return JudgeRefusal(response, asked);
}

std::optional<double> RetryState::NextDelay(const HubOptions& options, const Judgement& judgement,
                                            Clock::time_point now, std::mt19937_64& random) {
  if (judgement.verdict == Verdict::kGiveUp) return {};
  if (attempts_ == 0) first_failure_ = now;
  const int attempt = attempts_++;
  if (judgement.verdict != Verdict::kRetry && ++limited_attempts_ > kFewTimes) return {};
  double delay = std::min(options.max_retry_seconds,
                          options.retry_seconds * std::ldexp(1.0, std::min(attempt, 30)));
  // Many clients that failed at once must not come back at once.
  delay *= std::uniform_real_distribution<double>(0.5, 1.0)(random);
  // A new address costs nothing: the old one was the trouble.
  if (judgement.verdict == Verdict::kResolveAgain && limited_attempts_ == 1) delay = 0;
  if (judgement.retry_after_seconds) {
    delay = std::max(delay, std::min(*judgement.retry_after_seconds, kMaxRetryAfter));
  }
  const double tried = std::chrono::duration<double>(now - first_failure_).count();
  if (tried + delay > options.patience_seconds) return {};
  return delay;
}

}  // namespace deltafin
