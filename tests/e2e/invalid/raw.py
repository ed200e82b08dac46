"""JSON texts that need not be right."""

import json


class Raw(bytes):
    """JSON text as it stands, right or wrong."""

    def __deepcopy__(self, memo):
        return self


def dump(value):
    if isinstance(value, Raw):
        return bytes(value)
    if isinstance(value, dict):
        return b"{" + b",".join(dump(k) + b":" + dump(v) for k, v in value.items()) + b"}"
    if isinstance(value, list):
        return b"[" + b",".join(map(dump, value)) + b"]"
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")


def nested(depth, left=b"[", right=b"]"):
    return Raw(left * depth + right * depth)
