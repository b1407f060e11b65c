// Errors in the shape of OpenAI's interface.
#pragma once

#include <stdexcept>
#include <string>

#include "deltafin/error.h"
#include "deltafin/json.h"
#include "server/http_message.h"

namespace deltafin {

// Ends a request with a status. Its message names nothing of this machine.
class ApiError : public std::runtime_error {
 public:
  // `param`: the field that is wrong; `code`: a word for programs; both may be empty.
  ApiError(int status, const std::string& message, std::string param = {}, std::string code = {});

  int status() const { return status_; }
  const std::string& param() const { return param_; }
  const std::string& code() const { return code_; }

 private:
  int status_;
  std::string param_;
  std::string code_;
};

// {"error": {"message", "type", "param", "code"}}
Json ErrorJson(const ApiError& error);
// With Retry-After where trying again makes sense.
HttpResponse ErrorResponse(const ApiError& error);

// A request that the engine's parsers refused: their messages begin with the field
// ("messages[1].role: expected ...") and name nothing but the request.
ApiError RequestError(const Error& error);

}  // namespace deltafin
