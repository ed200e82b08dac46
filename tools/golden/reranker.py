"""Makes tests/rerankers/Qwen3-Reranker-tiny: a tiny random Qwen3 with the demo's tokenizer, and what transformers scores with it
in float32, pair by pair, as Qwen3-Reranker's model card computes it: two rows of the head at the prompt's last token.

    reranker.py OUT_DIR        # tests/rerankers
"""

import json
import pathlib
import sys

import torch
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

ROOT = pathlib.Path(__file__).resolve().parents[2]
PREFIX = ('<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct provided. Note that the '
          'answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n')
SUFFIX = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
TASK = "Given a web search query, retrieve relevant passages that answer the query"
CASES = [  # instruction or None, query, documents
    (None, "What is the capital of China?", ["The capital of China is Beijing.", "Gravity pulls bodies to each other.", ""]),
    ("Find the poem", "the sea", ["O wild West Wind", "The sea was calm to-night,\nthe tide is full", "e = m c²; naïve façade — 東京"]),
]


def tokenizer_file(folder):
    """The demo's tokenizer, in which "no" is a token too."""
    data = json.loads((ROOT / "models/demo/tokenizer.json").read_text())
    vocab, merges = data["model"]["vocab"], data["model"]["merges"]
    assert "yes" in vocab and "no" not in vocab
    vocab["no"] = max(max(vocab.values()), *(added["id"] for added in data["added_tokens"])) + 1
    merges.append("n o" if isinstance(merges[0], str) else ["n", "o"])
    (folder / "tokenizer.json").write_text(json.dumps(data, ensure_ascii=False))
    config = json.loads((ROOT / "models/demo/tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1))
    return vocab


def main():
    folder = pathlib.Path(sys.argv[1]) / "Qwen3-Reranker-tiny"
    folder.mkdir(parents=True, exist_ok=True)
    vocab = tokenizer_file(folder)
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    torch.manual_seed(7)
    config = Qwen3Config(vocab_size=len(vocab), hidden_size=72, intermediate_size=152, num_hidden_layers=2, num_attention_heads=4,
                         num_key_value_heads=2, head_dim=24, max_position_embeddings=1024, rope_theta=13370.0, rms_norm_eps=1.3e-6,
                         tie_word_embeddings=True, initializer_range=0.11, eos_token_id=2, bos_token_id=0, pad_token_id=0)
    model = Qwen3ForCausalLM(config).float().eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith("norm.weight"):
                weight.uniform_(0.6, 1.5)
    model.save_pretrained(folder)
    scored = []
    for instruction, query, documents in CASES:
        scores = []
        for document in documents:
            pair = f"<Instruct>: {instruction or TASK}\n<Query>: {query}\n<Document>: {document}"
            ids = [token for text in (PREFIX, pair, SUFFIX) for token in tokenizer(text, add_special_tokens=False)["input_ids"]]
            with torch.no_grad():
                logits = model(torch.tensor([ids])).logits[0, -1]
            two = torch.stack([logits[vocab["no"]], logits[vocab["yes"]]])
            scores.append({"score": torch.softmax(two.double(), 0)[1].item(), "tokens": len(ids)})
        scored.append({"instruction": instruction, "query": query, "documents": documents, "scores": scores})
    (folder / "scores.json").write_text(json.dumps(scored, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
