#include "other_servers.h"

#include <algorithm>
#include <iterator>

namespace rudder::apps {
namespace {

struct Hint {
  std::string_view flag;
  std::string_view text;
};

constexpr std::string_view kUseTensors = "use --tensor-parallel-size";
constexpr std::string_view kUseStages = "use --pipeline-parallel-size";
constexpr std::string_view kUseReplicas = "use --data-parallel-size";
constexpr std::string_view kDraftModel =
    "use --speculative-method draft_model --speculative-model FOLDER, or the method of what the "
    "folder has";
constexpr std::string_view kUseMethod = "use --speculative-method, or --speculative-config";
constexpr std::string_view kPickedByShape = "kernels are picked by shape, timed on this GPU";
constexpr std::string_view kNameAlone = "give the name alone: rudder serve ORG/NAME fetches it";
constexpr std::string_view kUseRows = "use --max-num-seqs";
constexpr std::string_view kUseLength = "use --max-model-len";
constexpr std::string_view kUseDevice = "use --device cuda or --device cpu";

constexpr Hint kHints[] = {
    // vLLM
    {"-tp", kUseTensors},
    {"-pp", kUseStages},
    {"-dp", kUseReplicas},
    {"--distributed-executor-backend", "one process has them all; nothing is to be chosen"},
    {"-sc", "use --speculative-config"},
    {"--ngram-prompt-lookup-max", "use --prompt-lookup-max"},
    {"--ngram-prompt-lookup-min", "use --prompt-lookup-min"},
    {"--kv-transfer-config", "prefill and decode are not split over servers yet"},
    {"--compilation-config", "nothing is compiled at run time"},
    {"-O", "nothing is compiled at run time"},
    {"--attention-backend", kPickedByShape},
    {"--runner", "a server generates, and embeds with what it generates"},
    {"--task", "a server generates, and embeds with what it generates"},
    {"--hf-token", "set HF_TOKEN, or log in with `hf auth login`"},
    {"--download-dir", "set HF_HUB_CACHE"},
    {"--tokenizer", "the tokenizer is the model folder's"},
    {"--guided-decoding-backend", "there is one; nothing is to be chosen"},
    {"--structured-outputs-config", "there is one backend; see --grammar-timeout, --max-grammar"},
    {"--pooler-config", "use --pooling"},
    {"--convert", "a server generates, and embeds with what it generates"},
    {"--enable-server-load-tracking", "/load is always there"},
    {"--swap-space", "preempted requests are computed again, nothing is swapped"},
    {"--cpu-offload-gb", "weights stay on the device"},
    {"--num-scheduler-steps", "use --multi-step"},
    {"--max-logprobs", "up to 20 log-probabilities a token are always there"},
    {"--disable-log-requests", "requests are not logged unless --enable-log-requests"},
    {"--root-path", "put the path into the proxy in front"},
    {"--exclude-tools-when-tool-choice-none", "tools are never shown where tool_choice is none"},
    {"--tool-parser-plugin", "parsers are built in: see --tool-call-parser"},
    {"--reasoning-parser-plugin", "parsers are built in: see --reasoning-parser"},
    {"--enable-reasoning", "thoughts are told from text wherever the chat template has them"},
    {"--limit-mm-per-prompt", "text is all that models are given"},
    {"--enable-prompt-tokens-details", "usage has prompt_tokens_details always"},
    {"--scheduling-policy", "a request's priority counts always, then who came first"},
    {"--return-tokens-as-token-ids", "ask for it in the request: return_tokens_as_token_ids"},
    {"--chat-template-content-format", "read off the chat template"},
    {"--response-role", "answers are the assistant's"},
    {"--max-seq-len-to-capture", "graphs are captured for every batch size up to --max-num-seqs"},
    {"--disable-frontend-multiprocessing", "one process serves; see --http-threads"},
    {"--api-server-count", "one process serves; see --http-threads and --tokenize-threads"},
    // SGLang
    {"--model-path", "use --model, or the name alone"},
    {"--tp", kUseTensors},
    {"--tp-size", kUseTensors},
    {"--pp-size", kUseStages},
    {"--dp", kUseReplicas},
    {"--dp-size", kUseReplicas},
    {"--mem-fraction-static", "use --gpu-memory-utilization"},
    {"--context-length", kUseLength},
    {"--max-running-requests", kUseRows},
    {"--chunked-prefill-size", "use --max-num-batched-tokens"},
    {"--disable-radix-cache", "use --no-enable-prefix-caching"},
    {"--disable-cuda-graph", "use --enforce-eager"},
    {"--cuda-graph-max-bs", "graphs are captured for every batch size up to --max-num-seqs"},
    {"--cuda-graph-bs", "graphs are captured for every batch size up to --max-num-seqs"},
    {"--grammar-backend", "there is one; nothing is to be chosen"},
    {"--schedule-policy", "a request's priority counts, then who came first"},
    {"--is-embedding", "a server generates, and embeds with what it generates"},
    {"--disable-overlap-schedule", "use --no-async-scheduling"},
    {"--random-seed", "use --seed"},
    {"--enable-metrics", "metrics are always on, at /metrics"},
    {"--log-requests", "use --enable-log-requests"},
    {"--watchdog-timeout", "use --stuck-step-us"},
    {"--max-queued-requests", "use --max-num-queued-reqs"},
    {"--enable-deterministic-inference", "use --batch-invariant"},
    {"--sampling-backend", kPickedByShape},
    {"--tokenizer-path", "the tokenizer is the model folder's"},
    {"--speculative-algorithm", kUseMethod},
    {"--speculative-draft-model-path", kDraftModel},
    {"--speculative-num-draft-tokens", "use --num-speculative-tokens"},
    {"--lora-paths", "use --enable-lora and --lora-modules"},
    // llama.cpp
    {"-m", "give the folder or the GGUF file alone"},
    {"-hf", kNameAlone},
    {"--hf-repo", kNameAlone},
    {"-c", kUseLength},
    {"--ctx-size", kUseLength},
    {"-np", kUseRows},
    {"--parallel", kUseRows},
    {"-ngl", kUseDevice},
    {"--n-gpu-layers", kUseDevice},
    {"--gpu-layers", kUseDevice},
    {"-t", "use --threads"},
    {"-ub", "use --max-num-batched-tokens"},
    {"--ubatch-size", "use --max-num-batched-tokens"},
    {"-b", "use --max-num-batched-tokens"},
    {"--batch-size", "use --max-num-batched-tokens"},
    {"-fa", kPickedByShape},
    {"--flash-attn", kPickedByShape},
    {"-ctk", "use --kv-cache-dtype"},
    {"--cache-type-k", "use --kv-cache-dtype"},
    {"-ctv", "use --kv-cache-dtype"},
    {"--cache-type-v", "use --kv-cache-dtype"},
    {"--jinja", "chat templates are always rendered"},
    {"--chat-template-file", "use --chat-template"},
    {"--control-vector", "use --enable-steering and --steering-module NAME=FILE.gguf"},
    {"--control-vector-scaled", "use --steering-module, and a scale in the request"},
    {"--control-vector-layer-range", "write the layers into the module"},
    {"-md", kDraftModel},
    {"--model-draft", kDraftModel},
    {"--draft-max", "use --num-speculative-tokens"},
    {"--spec-type", kUseMethod},
    {"--lora", "use --enable-lora and --lora-modules, with adapters as peft writes them"},
    {"--metrics", "metrics are always on, at /metrics"},
    {"--slots", "see /load and /metrics"},
    {"-cb", "batching is always continuous"},
    {"--cont-batching", "batching is always continuous"},
    {"--gguf-file", "name the GGUF file as MODEL"},
};

}  // namespace

std::string_view other_servers_hint(std::string_view flag) {
  const auto* hint = std::ranges::find(kHints, flag, &Hint::flag);
  return hint == std::end(kHints) ? std::string_view() : hint->text;
}

}  // namespace rudder::apps
