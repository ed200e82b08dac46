"""The chat markup of the demo model, and the turning of documents into token ids with a loss mask."""

END_OF_TEXT = "<|endoftext|>"
TURN_START = "<|im_start|>"
TURN_END = "<|im_end|>"
SPECIAL_TOKENS = [END_OF_TEXT, TURN_START, TURN_END]

CHAT_TEMPLATE = """\
{%- for message in messages -%}
{%- set content = message['content'] | trim -%}
{{- '<|im_start|>' + message['role'] + '\\n' + content + '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|im_start|>assistant\\n' -}}
{%- endif -%}
"""


def render(messages, add_generation_prompt=False):
    """What CHAT_TEMPLATE renders, without Jinja."""
    text = "".join(f"{TURN_START}{m['role']}\n{m['content'].strip()}{TURN_END}\n" for m in messages)
    return text + (f"{TURN_START}assistant\n" if add_generation_prompt else "")


def messages_of(system, exchanges):
    messages = [{"role": "system", "content": system}] if system else []
    for exchange in exchanges:
        messages.append({"role": "user", "content": exchange.user})
        messages.append({"role": "assistant", "content": exchange.reply})
    return messages


class Encoder:
    """Encodes documents with the demo tokenizer; only what an assistant says (and where it ends) is learnt."""

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer
        self.start = tokenizer.token_to_id(TURN_START)
        self.end = tokenizer.token_to_id(TURN_END)
        self.end_of_text = tokenizer.token_to_id(END_OF_TEXT)
        self.newline = self.ids("\n")
        self.reply_header = self.ids("assistant\n")

    def ids(self, text):
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def chat(self, messages):
        """(ids, mask) of a chat; a mask of 1 marks a token to be predicted."""
        ids, mask = [], []

        def add(tokens, learnt):
            ids.extend(tokens)
            mask.extend([learnt] * len(tokens))

        for message in messages:
            add([self.start], 0)
            if message["role"] == "assistant":
                add(self.reply_header, 0)
                add(self.ids(message["content"]), 1)
                add([self.end], 1)
            else:
                add(self.ids(f"{message['role']}\n{message['content']}"), 0)
                add([self.end], 0)
            add(self.newline, 0)
        return ids, mask

    def text(self, text):
        """(ids, mask) of plain text between two end-of-text tokens."""
        ids = [self.end_of_text, *self.ids(text), self.end_of_text]
        return ids, [0] + [1] * (len(ids) - 1)
