// Generation: carries one generation request through the engine: submits the prompts, turns events
// into the answer, cancels when the client disconnects, reports an engine failure to the client. It
// lives on its connection's I/O thread; the engine's sinks keep it alive until the last event.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "rudder/dialect/output_parser.h"
#include "rudder/server/context.h"
#include "rudder/server/generation/answer_format.h"
#include "rudder/server/generation/request_log.h"
#include "rudder/server/http/exchange.h"
#include "rudder/server/http/io_thread.h"
#include "rudder/server/request/generation_request.h"
#include "rudder/server/steering/steered_tokens.h"

namespace rudder::server {

class Generation final : public EventReceiver,
                         public Endable,
                         public std::enable_shared_from_this<Generation> {
 public:
  Generation(ServerContext& context, std::shared_ptr<Exchange> exchange, GenerationRequest request,
             std::shared_ptr<ActivityMark> mark);

  void start();
  void on_event(uint32_t source, engine::Event&& event) override;
  void on_batch_end() override;
  void on_failure(const Error& error) override;
  int64_t due_us() const override;  // a stream has been silent
  void on_due(int64_t now_us) override;
  void end_now() override;  // the server stops

 private:
  struct Choice {
    std::unique_ptr<dialect::OutputParser> parser;  // null: the text is all said
    dialect::Delta said;                            // where the answer is not streamed
    bool called = false;                            // a tool
    int32_t reasoning_tokens = 0;
    std::vector<engine::OutputToken> tokens;  // the same, where the client asked for them
    std::optional<engine::FinishReason> finish;
    std::string stop_reason;
    std::optional<int32_t> stop_token;
    std::string capture_results;
    std::string routed_experts;
    std::optional<SteeredTokens> steered;  // where the client wants them
    std::string steered_tokens;            // of them, at the end
    engine::Usage usage;
    int64_t text_offset = 0;
    bool begun = false;
  };

  bool tells_tokens() const {
    return format_->options().logprobs || format_->options().return_token_ids;
  }
  void submit_prompts();
  void submit(uint32_t prompt);
  bool charge_prompts();
  bool charge(int64_t bytes);
  bool take_scores(uint32_t prompt, engine::Event& event);
  void take_event(uint32_t prompt, engine::Event&& event);
  HttpResponse head() const;
  void begin_stream();
  // What the event adds to what the choice says, thinks and calls.
  dialect::Delta part(Choice& choice, engine::Event& event) const;
  void stream_event(uint32_t prompt, Choice& choice, int32_t index, engine::Event&& event);
  bool collect_event(Choice& choice, engine::Event&& event);  // false: too much is held
  ChoicePiece whole_piece(size_t index) const;
  engine::Usage total_usage() const;
  void succeed();
  void fail(const ApiError& error);
  void close(int status, std::string_view outcome);
  void cancel_all();

  ServerContext& context_;
  const std::shared_ptr<Exchange> exchange_;
  const std::unique_ptr<AnswerFormat> format_;
  std::vector<Prompt> prompts_;                   // their requests are moved away by start
  std::vector<std::vector<engine::Event>> held_;  // by prompt: until all of it is scored
  ByteCharge charge_;                             // of what is held until the answer is made
  int64_t charged_bytes_ = 0;
  const int64_t sent_bytes_;  // by the client
  const std::vector<std::string> ignored_fields_;
  const std::optional<dialect::ParserSetup> parser_;
  std::shared_ptr<ActivityMark> mark_;
  std::vector<engine::RequestId> ids_;  // by prompt, as far as submitted
  std::vector<Choice> choices_;         // prompt * n + choice
  size_t num_open_ = 0;
  int64_t first_token_us_ = 0;
  const int64_t ping_us_;  // of silence after which a stream gets a comment; 0: none
  int64_t last_sent_us_ = 0;
  bool streaming_ = false;  // the head is out
  bool dirty_ = false;      // output since the last batch end
  size_t whole_bytes_ = 0;  // of the output before the event at hand
  bool closed_ = false;
};

}  // namespace rudder::server
