"""Random JSON Schemas in each keyword that forms take, each schema with a way to draw documents that
it accepts, keys in the order of a grammar. `Schemas(random).draw()` gives (schema, sampler). The
words are those of draft 2020-12, and OpenAPI's `nullable`; `schema_drafts` has the older ones."""

from random_edges import Edges
from random_lists import Lists
from random_patterns import TEXT, Patterns

ROOT = "http://example.org/forms/root.json"


class Schemas(Lists, Edges):
    def __init__(self, random):
        self.random = random
        self.patterns = Patterns(random)
        self.definitions = {}

    def draw(self):
        self.definitions = {}
        self.names = {}
        self.has_names = False
        schema, sample = self.any(3)
        if self.definitions:
            schema = {**schema, "$defs": {name: body for name, (body, _) in self.definitions.items()}}
        if self.has_names or self.random.random() < 0.1:
            schema = {"$id": ROOT, **schema}
        return schema, sample

    def any(self, depth):
        leaves = [self.integer, self.number, self.text, self.text, self.listed, self.simple, self.multiple, self.far_bounds,
                  self.nothings]
        inner = [self.object, self.object, self.array, self.prefix, self.options, self.exclusive, self.together, self.map,
                 self.reference, self.recursive, self.types, self.pattern_map, self.counted, self.untyped, self.refused,
                 self.conditional, self.overlapping, self.dependent, self.unique, self.joined_maps, self.open_options,
                 self.containing, self.unevaluated, self.nullable, self.document, self.booleans, self.rounds]
        kinds = leaves if depth <= 0 else leaves + inner * 2
        schema, sample = self.random.choice(kinds)(depth)
        if self.random.random() < 0.1:
            schema = {**schema, "title": "A title", "description": "What it is.", "default": None, "vendor": {"x": [1]}}
        if self.random.random() < 0.1:
            idle = {"then": False, "format": "of-another-kind", "uniqueItems": False, "$comment": "Says nothing.", "readOnly": True}
            name = self.random.choice(list(idle))
            if not {name, "$ref", "if"} & set(schema):
                schema = {**schema, name: idle[name]}
        return schema, sample

    # Scalars.

    def simple(self, _):
        if self.random.random() < 0.5:
            return {"type": "boolean"}, lambda: self.random.random() < 0.5
        return {"type": "null"}, lambda: None

    def listed(self, _):
        values = self.random.sample(["a", "b c", 'q"', "é\n", 1, 2.5, -3, True, None, [1, "x"], {"k": 1}, ""], 4)
        if self.random.random() < 0.3:
            return {"const": values[0]}, lambda: values[0]
        return {"enum": values}, lambda: self.random.choice(values)

    def bounds(self, whole):
        random = self.random
        size = random.choice([1, 10, 100, 5000, 10**6])
        draw = (lambda: random.randint(-size, size)) if whole else (lambda: round(random.uniform(-size, size), random.randint(0, 3)))
        low, high = sorted([draw(), draw()])
        if high - low < 3:
            high += 3
        schema = {}
        if random.random() < 0.7:
            schema[random.choice(["minimum", "exclusiveMinimum"])] = low
        if random.random() < 0.7:
            schema[random.choice(["maximum", "exclusiveMaximum"])] = high
        for plain, bound in (("Minimum", low), ("Maximum", high)):
            if "exclusive" + plain in schema and random.random() < 0.3:  # both may be there
                schema[plain.lower()] = bound + random.choice([0, 1]) * (-1 if plain == "Minimum" else 1)
        return schema, low, high

    def integer(self, _):
        schema, low, high = self.bounds(self.random.random() < 0.8)
        return {"type": self.random.choice(["integer", ["integer"]]), **schema}, lambda: self.random.randint(int(low) + 1, int(high) - 1)

    def number(self, _):
        schema, low, high = self.bounds(self.random.random() < 0.4)

        def sample():
            value = round(self.random.uniform(low, high), self.random.randint(1, 6))
            return value if abs(value) >= 1e-4 else 0.0
        return {"type": "number", **schema}, sample

    def multiple(self, _):
        divisor = self.random.choice([1, 2, 3, 5, 7, 10, 25])
        schema = {"type": self.random.choice(["integer", "number"]), "multipleOf": divisor}
        if self.random.random() < 0.5:
            schema.update(minimum=-50, maximum=200)
            return schema, lambda: divisor * self.random.randint(-(50 // divisor), 200 // divisor)
        return schema, lambda: divisor * self.random.randint(-1000, 1000)

    def characters(self, low, high):
        return "".join(self.random.choice(TEXT) for _ in range(self.random.randint(low, high)))

    def text(self, _):
        random = self.random
        kind = random.randrange(4)
        if kind == 0:
            low, high = random.choice([(random.randint(0, 3), random.randint(3, 9)), (random.randint(20, 90), random.randint(90, 300))])
            schema = {"type": "string"}
            if random.random() < 0.7:
                schema["minLength"] = low
            if random.random() < 0.7:
                schema["maxLength"] = high
            return schema, lambda: self.characters(low, high)
        if kind == 1:
            text, draw = random.choice([self.patterns.row, self.patterns.alternatives, self.patterns.long])(1)
            if random.random() < 0.6:
                return {"type": "string", "pattern": f"^(?:{text})$"}, draw
            return {"type": "string", "pattern": text}, lambda: self.characters(0, 3) + draw() + self.characters(0, 3)
        if kind == 2:
            low, high = random.randint(0, 3), random.choice([random.randint(4, 8), random.randint(65, 200)])
            schema = {"type": "string", "pattern": "^[a-z_]+$", "minLength": low, "maxLength": high}
            return schema, lambda: "".join(random.choice("abz_") for _ in range(random.randint(max(low, 1), high)))
        samples = {
            "date": ["2024-02-29", "1999-12-31", "0001-01-01", "2023-04-30"],
            "time": ["23:59:59Z", "00:00:00.5+01:30"],
            "date-time": ["2024-02-29T12:00:00Z", "1985-04-12T23:20:50.52-08:00"],
            "email": ["a@b.io", "first.last+tag@mail.example.com"],
            "hostname": ["localhost", "a-b.example.org"],
            "ipv4": ["0.0.0.0", "255.10.9.200"],
            "ipv6": ["::", "::1", "2001:db8::8a2e:370:7334", "1:2:3:4:5:6:7:8", "fe80::"],
            "uri": ["https://example.com/a/b?q=1#x", "mailto:a@b.io", "http://a.b:8080"],
            "uuid": ["123e4567-e89b-12d3-a456-426614174000"],
            "duration": ["P3Y6M4D", "PT1H", "P2W", "P1DT12H30M5S"],
            "json-pointer": ["", "/a~1b/0"],
        }
        name = random.choice(list(samples))
        return {"type": "string", "format": name}, lambda: random.choice(samples[name])

    # Combinations.

    def types(self, depth):
        low = self.random.randint(0, 5)
        schema = {"type": ["string", "null", "integer"], "minLength": low, "maximum": 50}
        return schema, lambda: self.random.choice([None, self.random.randint(-9, 50), self.characters(low, low + 4)])

    def options(self, depth):
        parts = [self.any(depth - 1) for _ in range(self.random.randint(2, 3))]
        return {"anyOf": [p[0] for p in parts]}, lambda: self.random.choice(parts)[1]()

    def exclusive(self, depth):
        if self.random.random() < 0.5:
            parts = [self.integer(0), self.text(0), self.array(depth), ({"type": "null"}, lambda: None)]
            return {"oneOf": [p[0] for p in parts]}, lambda: self.random.choice(parts)[1]()
        parts = [self.any(depth - 1) for _ in range(2)]
        arms = [{"type": "object", "properties": {"kind": {"const": str(i)}, "value": part[0]},
                 "required": ["kind", "value"]} for i, part in enumerate(parts)]

        def sample():
            i = self.random.randrange(2)
            return {"kind": str(i), "value": parts[i][1]()}
        return {"oneOf": arms}, sample

    def together(self, depth):
        kind = self.random.randrange(3)
        if kind == 0:
            schema = {"allOf": [{"type": "integer", "minimum": -5}, {"type": "number", "maximum": 12}, {"minimum": 2}]}
            return schema, lambda: self.random.randint(2, 12)
        left, right = self.any(depth - 1), self.any(depth - 1)
        a = {"type": "object", "properties": {"left": left[0]}, "required": ["left"]}
        b = {"type": "object", "properties": {"right": right[0]}, "required": ["right"]}
        schema = {"allOf": [a, b]} if kind == 1 else {**a, "anyOf": [b]}
        return schema, lambda: {"left": left[1](), "right": right[1]()}

    # What binds in some cases alone.

    def untyped(self, depth):
        """Keywords of one type, which say nothing of other values."""
        kind, python = self.random.choice([(self.integer, int), (self.text, str), (self.object, dict), (self.array, list),
                                           (self.containing, list), (self.dependent, dict), (self.prefix, list)])
        schema, sample = kind(depth - 1)
        schema = {key: value for key, value in schema.items() if key != "type"}
        others = [value for value in (None, "", "text", -7, 12345, [], [None], {}) if not isinstance(value, python)]
        return schema, lambda: sample() if self.random.random() < 0.6 else self.random.choice(others)

    def refused(self, depth):
        """`not`, of what has a complement."""
        random = self.random
        kind = random.randrange(5)
        if kind == 0:
            values = random.sample(["a", "b", "", 'q"', "no"], 2)
            return {"type": "string", "not": {"enum": values}}, lambda: random.choice(["c", "ab", "aa", "é"])
        if kind == 1:
            values = random.sample(range(-4, 5), 3)
            schema = {"type": "integer", "minimum": -6, "maximum": 6, "not": {"enum": values}}
            return schema, lambda: random.choice([value for value in range(-6, 7) if value not in values])
        if kind == 2:
            names = random.sample(["string", "object", "array", "null", "boolean"], 2)
            samples = {"string": "x", "object": {"a": 1}, "array": [1], "null": None, "boolean": True, "number": -2.5}
            return {"not": {"type": names}}, lambda: samples[random.choice([name for name in samples if name not in names])]
        if kind == 3:
            schema = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "null"}}, "not": {"required": ["a", "b"]}}
            return schema, lambda: random.choice([{}, {"a": 1}, {"b": None}])
        schema = {"type": "integer", "not": {"anyOf": [{"minimum": 10}, {"maximum": -10}]}}
        return schema, lambda: random.randint(-9, 9)

    def conditional(self, depth):
        left, right = self.any(depth - 1), self.any(depth - 1)
        kind = {"properties": {"kind": {"const": "left"}}, "required": ["kind"]}
        schema = {"type": "object", "properties": {"kind": {"enum": ["left", "right"]}, "value": {}}, "required": ["kind", "value"],
                  "if": kind, "then": {"properties": {"value": left[0]}}, "else": {"properties": {"value": right[0]}}}
        if self.random.random() < 0.3:
            del schema["else"]

        def sample():
            name = self.random.choice(["left", "right"])
            return {"kind": name, "value": (left if name == "left" else right)[1]()}
        return schema, sample

    def overlapping(self, _):
        """oneOf whose options hold together for some values."""
        random = self.random
        if random.random() < 0.4:
            options = [{"type": "object", "additionalProperties": True},
                       {"type": "object", "properties": {"a": self.integer(0)[0]}, "required": ["a"]}]
            random.shuffle(options)
            return {"oneOf": options}, lambda: random.choice([{}, {"b": 1}, {"a": "x"}, {"a": None, "b": [2]}])
        low, high = random.randint(-5, 5), random.randint(6, 20)
        schema = {"oneOf": [{"type": "integer", "minimum": low}, {"type": "integer", "maximum": high}, {"type": "null"}]}
        return schema, lambda: random.choice([None, random.randint(-30, low - 1), random.randint(high + 1, 40)])

    def dependent(self, depth):
        value = self.any(depth - 1)
        schema = {"type": "object", "properties": {"a": value[0], "b": {"type": "integer"}, "c": {"type": "null"}}}
        if self.random.random() < 0.6:
            schema["dependentSchemas"] = {"a": self.random.choice([
                True, {"required": ["b"]}, {"properties": {"b": {"minimum": 2}}}, {"minProperties": 2}, {"not": {"required": ["c"]}}])}
        if self.random.random() < 0.5 or len(schema) == 2:
            schema["dependentRequired"] = {"c" if "dependentSchemas" in schema else "a": self.random.choice([["b"], []])}
        return schema, lambda: self.random.choice([{}, {"b": 1}, {"a": value[1](), "b": 2}, {"b": 3, "c": None}])

    def unevaluated(self, depth):
        """Properties that no part names."""
        random = self.random
        own, part, rest = self.any(depth - 1), self.any(depth - 1), random.choice([False, {"type": "integer"}, True])
        inner = {"type": "object", "properties": {"part": part[0]}}
        if random.random() < 0.5:
            name = f"Part{len(self.definitions)}"
            self.definitions[name] = (inner, lambda: {"part": part[1]()})
            inner = {"$ref": f"#/$defs/{name}"}
        schema = {"type": "object", "properties": {"own": own[0]}, "allOf": [inner], "unevaluatedProperties": rest}
        if "$ref" in inner and random.random() < 0.5:
            del schema["allOf"]
            schema.update(inner)
        elif random.random() < 0.3:
            del schema["allOf"]
            part = None

        def sample():
            out = {"own": own[1]()} if random.random() < 0.6 else {}
            if part and random.random() < 0.6:
                out["part"] = part[1]()
            if rest is not False and random.random() < 0.4:
                out["more"] = 5
            return out
        return schema, sample

    def nullable(self, depth):
        kind = self.random.choice([self.integer, self.text, self.object, self.array])
        schema, sample = kind(depth - 1)
        is_nullable = self.random.random() < 0.8
        return {**schema, "nullable": is_nullable}, lambda: None if is_nullable and self.random.random() < 0.3 else sample()

    def booleans(self, depth):
        """Schemas that are true or false, wherever a schema may stand."""
        value = self.any(depth - 1)
        kind = self.random.randrange(4)
        if kind == 0:
            schema = {"type": "object", "properties": {"a": True, "b": False, "c": value[0]}, "patternProperties": {"^x": False}}
            return schema, lambda: self.random.choice([{}, {"a": [1]}, {"a": None, "c": value[1]()}])
        if kind == 1:
            return {"type": "array", "items": self.random.random() < 0.5, "maxItems": 2}, list
        if kind == 2:
            return {"anyOf": [False, value[0]]}, value[1]
        return {"allOf": [True, value[0]], "not": False}, value[1]

    # Containers.

    def object(self, depth):
        random = self.random
        names = random.sample(["a", "name", "é", "x y", 'q"', "items", "ab", "n\\m", "abc"], random.randint(0, 4))
        fields = {name: self.any(depth - 1) for name in names}
        required = [name for name in names if random.random() < 0.5]
        schema = {"type": "object", "properties": {name: f[0] for name, f in fields.items()}}
        if required:
            schema["required"] = random.sample(required, len(required))
        more = None
        if random.random() < 0.3:
            more = self.any(depth - 1)
            schema["additionalProperties"] = more[0]
        elif random.random() < 0.5:
            schema["additionalProperties"] = False

        def sample():
            value = {name: f[1]() for name, f in fields.items() if name in required or random.random() < 0.6}
            if more:
                for _ in range(random.randint(0, 2)):
                    key = random.choice(["a", "ac", "abcd", "other", "", 'q"x', "zé"])
                    if key not in names:
                        value[key] = more[1]()
            elif not names and "additionalProperties" not in schema and random.random() < 0.5:
                value["free"] = [1, {"deep": None}]
            return value
        return schema, sample

    def counted(self, depth):
        names = ["a", "b", "c", "d"]
        low, high = self.random.randint(0, 2), self.random.randint(2, 4)
        required = self.random.sample(names, self.random.randint(0, high))
        schema = {"type": "object", "properties": {n: {"type": "integer"} for n in names}, "required": required,
                  "minProperties": low, "maxProperties": high, "additionalProperties": False}

        def sample():
            others = [n for n in names if n not in required]
            count = self.random.randint(max(low, len(required)), high) - len(required)
            chosen = set(required) | set(self.random.sample(others, count))
            return {n: self.random.randint(-5, 5) for n in names if n in chosen}
        return schema, sample

    def map(self, depth):
        value = self.any(depth - 1)
        schema = {"type": "object", "additionalProperties": value[0]}
        keys = ["a", "key two", "é", 'q"', "\n"]
        if self.random.random() < 0.4:
            schema["propertyNames"] = {"pattern": "^[a-c]+$", "maxLength": 4}
            keys = ["a", "bb", "abca", "c"]
        if self.random.random() < 0.4:
            schema["maxProperties"] = 3
        low = 1 if self.random.random() < 0.3 else 0
        if low:
            schema["minProperties"] = 1
        return schema, lambda: {k: value[1]() for k in self.random.sample(keys, self.random.randint(low, 3))}

    def pattern_map(self, depth):
        value, fixed = self.any(depth - 1), self.any(depth - 1)
        schema = {"type": "object", "patternProperties": {"^x_[a-z]+$": value[0]}, "additionalProperties": False}
        if self.random.random() < 0.5:
            schema["properties"] = {"id": fixed[0]}
            schema["required"] = ["id"]

        def sample():
            out = {"id": fixed[1]()} if "properties" in schema else {}
            out.update({k: value[1]() for k in self.random.sample(["x_a", "x_bc", "x_zz"], self.random.randint(0, 2))})
            return out
        return schema, sample

    def joined_maps(self, depth):
        """Maps that bind together, each with its own names."""
        random = self.random
        value, fixed = self.any(depth - 1), self.any(depth - 1)
        shape = {"patternProperties": {"^x_[a-z]+$": value[0]}, "properties": {"id": {}}}
        shape["additionalProperties"] = random.choice([False, True, {"type": "integer"}])
        other = {"properties": {"id": fixed[0], "x_id": {}}, "additionalProperties": random.choice([True, value[0]])}
        if random.random() < 0.4:
            other["patternProperties"] = {"_a$": value[0]}
        parts = [{"type": "object", **shape}, other]
        random.shuffle(parts)

        def sample():
            out = {"id": fixed[1]()} if random.random() < 0.7 else {}
            if random.random() < 0.3:
                out["x_id"] = value[1]()
            names = ["x_a", "x_zz"] + ["y_a", "other"] * (shape["additionalProperties"] is True)
            out.update({k: value[1]() for k in random.sample(names, random.randint(0, 2))})
            if other["additionalProperties"] is True and shape["additionalProperties"] is not False and random.random() < 0.3:
                out["more"] = 1
            return out
        return {"allOf": parts}, sample

    def open_options(self, depth):
        """oneOf whose options say nothing of what is no object."""
        random = self.random
        names = ["one", "two", "three"][:random.randint(2, 3)]
        parts = [self.any(depth - 1) for _ in names]
        kind = {"properties": {"kind": {"type": "string"}}, "required": ["kind"]}
        options = [{"properties": {"kind": {"const": name}, "value": part[0]}, "required": ["kind"]} for name, part in zip(names, parts)]
        if random.random() < 0.5:
            options[0] = {"type": random.choice(["object", ["object", "string"]]), **options[0]}
        if random.random() < 0.5:
            options[-1] = {"allOf": [kind, {**options[-1], "required": ["value"]}]}

        is_open = sum("type" not in option for option in options) == 1 and options[0].get("type") != ["object", "string"]

        def sample():
            if is_open and random.random() < 0.2:  # one option says nothing of it
                return random.choice(["text", 7, None, []])
            i = random.randrange(len(names))
            return {"kind": names[i], "value": parts[i][1]()}
        return {"oneOf": options}, sample

    # References.

    def reference(self, depth):
        """By a pointer, by an anchor, or by the name of the document, which may be its own."""
        random = self.random
        made = [name for name in self.definitions if not name.startswith(("Tree", "Document"))]
        if made and random.random() < 0.5:
            name = random.choice(made)
        else:
            body, sample = self.any(depth - 1)
            name = f"{random.choice(['One', 'a/b', 't~x', 'a b'])}{len(self.definitions)}"
            if random.random() < 0.3 and isinstance(body, dict) and "$ref" not in body and "$anchor" not in body:
                self.names[name] = f"anchor-{len(self.definitions)}"
                body = {"$anchor": self.names[name], **body}
            self.definitions[name] = (body, sample)
        _, sample = self.definitions[name]
        pointer = "#/$defs/" + name.replace("~", "~0").replace("/", "~1").replace(" ", random.choice([" ", "%20"]))
        if name in self.names and random.random() < 0.7:
            pointer = "#" + self.names[name]
        if random.random() < 0.2:
            self.has_names = True
            pointer = random.choice([ROOT, "root.json", "/forms/root.json"]) + pointer
        return {"$ref": pointer}, sample

    def document(self, depth):
        """A document in the document, which is referred to by its name and has references of its own."""
        random = self.random
        value, other = self.any(0), self.any(0)
        number = len(self.definitions)
        own = random.choice([f"part{number}.json", f"http://example.org/other/part{number}.json"])
        anchor = {"$anchor": "here"} if random.random() < 0.5 else {}
        body = {"$id": own, "type": "object", "$defs": {"value": {**anchor, **value[0]}, "other": other[0]}, "required": ["value"],
                "properties": {"value": {"$ref": "#here" if anchor else "#/$defs/value"}, "other": {"$ref": f"{own}#/$defs/other"}}}
        whole = lambda: {"value": value[1](), **({"other": other[1]()} if random.random() < 0.5 else {})}
        self.has_names = True
        self.definitions[f"Document{number}"] = (body, whole)
        return random.choice([({"$ref": own}, whole), ({"$ref": f"#/$defs/Document{number}"}, whole),
                              ({"$ref": f"{own}#/$defs/other"}, other[1])] + [({"$ref": f"{own}#here"}, value[1])] * bool(anchor))

    def recursive(self, depth):
        value = self.any(0)
        name = f"Tree{len(self.definitions)}"
        here = {"$ref": f"#/$defs/{name}", "description": "A tree below."}
        body = {"type": "object", "properties": {"value": value[0], "next": {"anyOf": [here, {"type": "null"}]},
                                                 "more": {"type": "array", "items": here}}, "required": ["value"]}

        def sample(levels=3):
            out = {"value": value[1]()}
            if levels and self.random.random() < 0.6:
                out["next"] = sample(levels - 1) if self.random.random() < 0.7 else None
            if levels and self.random.random() < 0.3:
                out["more"] = [sample(levels - 1) for _ in range(self.random.randint(0, 2))]
            return out
        self.definitions[name] = (body, sample)
        return here, sample
