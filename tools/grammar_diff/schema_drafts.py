"""JSON Schemas in the words of older drafts."""


def in_draft(schema, draft):
    """The schema in the words of draft 4 or 7, or None where that has none for it."""
    if isinstance(schema, list):
        parts = [in_draft(part, draft) for part in schema]
        return None if None in parts else parts
    if not isinstance(schema, dict):
        return schema if draft == 7 or not isinstance(schema, bool) else {} if schema else {"not": {}}
    out = {}
    for key, value in schema.items():
        if key in ("enum", "const", "default", "required", "type", "uniqueItems", "vendor"):
            if key == "const" and draft == 4:
                key, value = "enum", [value]
            if key in out:
                return None
            out[key] = value
        elif key in ("properties", "patternProperties", "$defs"):
            parts = {name: in_draft(part, draft) for name, part in value.items()}
            if None in parts.values():
                return None
            out["definitions" if key == "$defs" else key] = parts
        elif key == "$ref":
            out[key] = value.replace("#/$defs/", "#/definitions/")
        elif key == "dependentRequired":
            out["dependencies"] = value
        elif key in ("exclusiveMinimum", "exclusiveMaximum") and draft == 4:
            plain = key.replace("exclusiveM", "m")
            if plain in schema:
                return None
            out[plain], out[key] = value, True
        elif draft == 4 and key in ("if", "then", "else", "propertyNames"):
            return None
        elif key == "additionalProperties" and isinstance(value, bool):
            out[key] = value
        else:
            part = in_draft(value, draft) if isinstance(value, (dict, list, bool)) else value
            if part is None:
                return None
            out[key] = part
    if "prefixItems" in out:
        rest = out.pop("items", None)
        out["items"] = out.pop("prefixItems")
        if rest is not None:
            out["additionalItems"] = rest
    return out
