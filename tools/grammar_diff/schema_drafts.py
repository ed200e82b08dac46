"""JSON Schemas in the words of older drafts, each in every form that forms take."""


def as_jsonschema(schema):
    """With OpenAPI's `nullable`, which jsonschema does not know, as a type."""
    if isinstance(schema, list):
        return [as_jsonschema(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    out = {key: value if key in ("enum", "const", "default") else as_jsonschema(value) for key, value in schema.items()}
    if out.pop("nullable", False) is True and "type" in out:
        types = out["type"] if isinstance(out["type"], list) else [out["type"]]
        out["type"] = types + ["null"] * ("null" not in types)
    return out


def renamed(schema, draft):
    """`$id` and `$anchor` in the words of the draft; None where it has none for it."""
    names = [schema["$id"]] if "$id" in schema else []
    if "$anchor" in schema:
        names.append("#" + schema["$anchor"])
    if len(names) > 1 or (names and "$ref" in schema):
        return None
    return {"id" if draft == 4 else "$id": names[0]} if names else {}


def items_of(out, random):
    """Lists of items, and `additionalItems`, which says nothing beside a schema in `items`."""
    if "prefixItems" in out:
        rest = out.pop("items", None)
        out["items"] = out.pop("prefixItems")
        if rest is not None:
            out["additionalItems"] = rest
    elif isinstance(out.get("items"), dict) and random.random() < 0.2:
        if random.random() < 0.5:
            out["items"], out["additionalItems"] = [], out["items"]
        else:
            out["additionalItems"] = random.choice([False, {"type": "null"}])
    return out


def in_draft(schema, draft, random):
    """The schema in the words of draft 4 or 7, or None where that has none for it."""
    if isinstance(schema, list):
        parts = [in_draft(part, draft, random) for part in schema]
        return None if None in parts else parts
    if not isinstance(schema, dict):
        return schema if draft == 7 or not isinstance(schema, bool) else {} if schema else {"not": {}}
    out = renamed(schema, draft)
    if out is None or ("$ref" in schema and set(schema) - {"$ref", "$defs", "title", "description", "default", "vendor", "$comment"}):
        return None  # what stands beside a reference says nothing there
    for key, value in schema.items():
        if key in ("enum", "const", "default", "required", "type", "uniqueItems", "vendor", "nullable"):
            if key == "const" and draft == 4:
                key, value = "enum", [value]
            if key in out:
                return None
            out[key] = value
        elif key in ("$id", "$anchor"):
            continue
        elif key in ("properties", "patternProperties", "$defs"):
            parts = {name: in_draft(part, draft, random) for name, part in value.items()}
            if None in parts.values():
                return None
            out["definitions" if key == "$defs" else key] = parts
        elif key == "$ref":
            out[key] = value.replace("#/$defs/", "#/definitions/")
        elif key in ("dependentRequired", "dependentSchemas"):
            parts = {name: part if isinstance(part, list) and key == "dependentRequired" else in_draft(part, draft, random)
                     for name, part in value.items()}
            if None in parts.values() or set(parts) & set(out.get("dependencies", {})):
                return None
            if draft == 4 and [] in parts.values():
                return None
            out.setdefault("dependencies", {}).update(parts)
        elif key in ("exclusiveMinimum", "exclusiveMaximum") and draft == 4:
            plain = key.replace("exclusiveM", "m")
            if plain in schema:
                return None
            out[plain], out[key] = value, True
        elif key in ("unevaluatedProperties", "unevaluatedItems"):
            return None
        elif draft == 4 and key in ("if", "then", "else", "propertyNames", "contains"):
            return None
        elif key == "additionalProperties" and isinstance(value, bool):
            out[key] = value
        else:
            part = in_draft(value, draft, random) if isinstance(value, (dict, list, bool)) else value
            if part is None:
                return None
            out[key] = part
    if draft == 4:
        for key in ("minimum", "maximum"):
            exclusive = key.replace("m", "exclusiveM", 1)
            if exclusive not in out and ("type" in out or key in out) and random.random() < 0.2:
                out[exclusive] = False if key in out else random.choice([False, True])  # nothing either way
    return items_of(out, random)
