#include "server/api_error.h"

#include <algorithm>
#include <string_view>
#include <utility>

namespace deltafin {
namespace {

constexpr const char* kRetrySeconds = "5";

const char* TypeOf(int status) {
  if (status == 401) return "authentication_error";
  if (status == 403) return "permission_error";
  if (status == 429) return "rate_limit_error";
  return status >= 500 ? "server_error" : "invalid_request_error";
}

Json OrNull(const std::string& text) { return text.empty() ? Json() : Json(text); }

bool IsFieldCharacter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
         c == '.' || c == '[' || c == ']' || c == '-' || c == '$' || c == '/';
}

}  // namespace

ApiError::ApiError(int status, const std::string& message, std::string param, std::string code)
    : std::runtime_error(message),
      status_(status),
      param_(std::move(param)),
      code_(std::move(code)) {}

Json ErrorJson(const ApiError& error) {
  return {{"error",
           {{"message", error.what()},
            {"type", TypeOf(error.status())},
            {"param", OrNull(error.param())},
            {"code", OrNull(error.code())}}}};
}

HttpResponse ErrorResponse(const ApiError& error) {
  HttpResponse response;
  response.status = error.status();
  response.content_type = "application/json";
  response.body = DumpJson(ErrorJson(error)) + "\n";
  if (error.status() == 429 || error.status() == 503) {
    response.headers.emplace_back("Retry-After", kRetrySeconds);
  }
  if (error.status() == 401) response.headers.emplace_back("WWW-Authenticate", "Bearer");
  return response;
}

ApiError RequestError(const Error& error) {
  const std::string message = error.what();
  const size_t colon = message.find(": ");
  const std::string_view field = std::string_view(message).substr(0, colon);
  const bool is_field = colon != std::string::npos && !field.empty() &&
                        std::all_of(field.begin(), field.end(), IsFieldCharacter);
  return ApiError(400, message, is_field ? std::string(field) : std::string(),
                  error.code() == ErrorCode::kUnsupported ? "unsupported" : "");
}

}  // namespace deltafin
