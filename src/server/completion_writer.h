// Answers as text completions: whole, or as chunks.
#pragma once

#include <string>
#include <vector>

#include "server/answer_writer.h"

namespace deltafin {

struct CompletionWriterOptions {
  AnswerHeading heading;
  size_t num_prompts = 1;
  size_t choices_per_prompt = 1;
  bool with_logprobs = false;
  bool include_usage = false;
};

class CompletionWriter final : public AnswerWriter {
 public:
  CompletionWriter(const Tokenizer& tokenizer, CompletionWriterOptions options);

  std::string BeginStream() override { return {}; }
  std::string Piece(size_t choice, const AnswerPiece& piece) override;
  std::string End(size_t choice, const AnswerEnd& end) override;
  std::string EndStream() override;
  void Collect(size_t choice, AnswerPiece piece) override;
  void CollectEnd(size_t choice, const AnswerEnd& end) override;
  Json Whole() override;

 private:
  struct Choice {
    AnswerPiece all;
    AnswerEnd end;
  };
  Json ChoiceJson(size_t choice, const AnswerPiece& piece, Json finish_reason) const;
  std::string Chunk(Json choices, const Json& timings) const;

  const Tokenizer& tokenizer_;
  const CompletionWriterOptions options_;
  std::vector<Choice> choices_;
  UsageSum usage_;
};

}  // namespace deltafin
