// The endpoints that compute nothing: models, tokens, the page.
#include <algorithm>
#include <chrono>
#include <utility>

#include "server/api_error.h"
#include "server/chat_request.h"
#include "server/completion_request.h"
#include "server/page_files.h"
#include "server/service.h"

namespace deltafin {
namespace {

constexpr std::string_view kModelsPath = "/v1/models/";
constexpr size_t kMaxNotices = 8;

// Nothing that the page shows can load or run anything else.
constexpr const char* kPagePolicy =
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    "connect-src 'self'; font-src 'self'; manifest-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'";

Json ModelJson(const Service& service, const std::string& name) {
  return {{"id", name},
          {"object", "model"},
          {"created", service.started},
          {"owned_by", "deltafin"},
          {"context_length", service.limits.context_tokens},
          {"max_model_len", service.limits.context_tokens}};
}

// The name of a field, of which a header can hold any.
std::string HeaderName(std::string name) {
  if (name.size() > 64) name.resize(64);
  const auto is_plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-' || c == '.';
  };
  std::replace_if(
      name.begin(), name.end(), [&](char c) { return !is_plain(c); }, '?');
  return name;
}

}  // namespace

AnswerHeading NewHeading(const Service& service, const std::string& id) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return {id, std::chrono::duration_cast<std::chrono::seconds>(now).count(),
          service.limits.model_names.front(), "deltafin-" + service.version};
}

HttpHeaders NoticeHeaders(const Service& service, const std::string& id,
                          const std::vector<std::string>& ignored,
                          const std::vector<std::string>& notes) {
  HttpHeaders headers{{"X-Request-Id", id}};
  if (!ignored.empty()) {
    std::string names;
    for (size_t i = 0; i < std::min(kMaxNotices, ignored.size()); ++i) {
      names += (i > 0 ? ", " : "") + HeaderName(ignored[i]);
    }
    if (ignored.size() > kMaxNotices) names += ", ...";
    service.generation.log(id + ": these fields mean nothing here: " + names);
    headers.emplace_back("X-Deltafin-Ignored", std::move(names));
  }
  for (const std::string& note : notes) {
    service.generation.log(id + ": " + note);
    headers.emplace_back("X-Deltafin-Note", note);
  }
  return headers;
}

void SendJson(const Json& json, const HttpHeaders& headers,
              const std::shared_ptr<Exchange>& exchange) {
  exchange->Send({200, "application/json", DumpJson(json) + "\n", headers});
}

void HandleModels(const Service& service, const HttpRequest&,
                  const std::shared_ptr<Exchange>& exchange) {
  Json models = Json::array();
  for (const std::string& name : service.limits.model_names) {
    models.push_back(ModelJson(service, name));
  }
  SendJson({{"object", "list"}, {"data", std::move(models)}}, {}, exchange);
}

void HandleModel(const Service& service, const HttpRequest& request,
                 const std::shared_ptr<Exchange>& exchange) {
  const std::string name = request.path.substr(kModelsPath.size());
  const std::vector<std::string>& names = service.limits.model_names;
  if (std::find(names.begin(), names.end(), name) == names.end()) {
    throw ApiError(404, "there is no such model here (GET /v1/models)", "model", "model_not_found");
  }
  SendJson(ModelJson(service, name), {}, exchange);
}

void HandleTokenize(const Service& service, const HttpRequest& request,
                    const std::shared_ptr<Exchange>& exchange) {
  const Json json = ParseRequestBody(request.body);
  JsonFields fields(json, "");
  fields.Accept("model");
  std::vector<TokenId> ids;
  if (fields.Find("messages") != nullptr) {
    ids = ReadChatPrompt(request.body, &fields, service.limits).ids;
  } else {
    // llama.cpp's servers call it content, vLLM's prompt.
    const std::optional<std::string> content = fields.String("content");
    const std::optional<std::string> prompt = fields.String("prompt");
    if (!content && !prompt) fields.Bad("prompt", "a text (or messages)");
    ids = service.engine->tokenizer().Encode(prompt ? *prompt : *content, Specials::kPlain);
  }
  SendJson(
      {{"count", ids.size()}, {"max_model_len", service.limits.context_tokens}, {"tokens", ids}},
      NoticeHeaders(service, "tokenize", fields.unknown(), {}), exchange);
}

void HandleDetokenize(const Service& service, const HttpRequest& request,
                      const std::shared_ptr<Exchange>& exchange) {
  const Json json = ParseRequestBody(request.body);
  JsonFields fields(json, "");
  fields.Accept("model");
  const Json* tokens = fields.Array("tokens");
  if (tokens == nullptr) fields.Bad("tokens", "an array of token ids");
  const std::string text =
      service.engine->tokenizer().Decode(ReadTokenIds(*tokens, "tokens", service.limits));
  SendJson({{"prompt", text}, {"content", text}},
           NoticeHeaders(service, "detokenize", fields.unknown(), {}), exchange);
}

void HandlePage(const Service&, const HttpRequest& request,
                const std::shared_ptr<Exchange>& exchange) {
  const PageFile* const file = FindPageFile(request.path);
  if (file == nullptr) throw ApiError(404, "there is no such page");
  HttpResponse response;
  response.content_type = file->content_type;
  response.headers = {
      {"ETag", std::string(file->tag)},         {"Cache-Control", "no-cache"},
      {"Content-Security-Policy", kPagePolicy}, {"X-Content-Type-Options", "nosniff"},
      {"Referrer-Policy", "no-referrer"},       {"X-Frame-Options", "DENY"}};
  if (request.Header("if-none-match") == file->tag) {
    response.status = 304;
  } else {
    response.body = file->content;
  }
  exchange->Send(std::move(response));
}

}  // namespace deltafin
