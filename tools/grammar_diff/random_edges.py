"""Schemas about values that are easily taken for something else: numbers of every size and sign, and
beside where doubles end; strings, lists and objects of nothing; zeros and whole numbers in every
spelling; conditions and lists whose schemas lead back to themselves."""

EDGES = [0, 1, 15, 10**14, 10**15, 2**53, 2**63, 2**64, 10**18, 10**22, 10**30]
FLOATS = [1e14, 1e15, 1e18, 1e21, 1e308, 0.1, 1e-7, 5e-324, 1.7976931348623157e308, 99999999999999.9, 0.30000000000000004]


class Edges:
    def size(self, whole):
        """A number about an edge, of either sign."""
        random = self.random
        kind = random.randrange(3)
        if kind == 0 and not whole:
            value = random.choice(FLOATS)
        elif kind == 1:
            value = random.randint(0, 10 ** random.randint(1, 25))
        else:
            value = random.choice(EDGES) + random.choice([-1, 0, 0, 1])
            if random.random() < 0.3 and value < 10**16:
                value = float(value)
        return -value if random.random() < 0.5 else value

    def far_bounds(self, depth):
        random = self.random
        whole = random.random() < 0.5
        ends = [self.size(whole) for _ in range(random.randint(1, 2))]
        if len(ends) == 2 and random.random() < 0.4:
            ends[1] = ends[0] + random.choice([0, 1, 2, 1000])
        low, high = min(ends), max(ends)
        schema = {"type": "integer" if whole else random.choice(["number", ["number"]])}
        sides = random.choice(["low", "high"]) if len(ends) == 1 else "both"
        if sides != "high":
            schema[random.choice(["minimum", "exclusiveMinimum"])] = low
        if sides != "low":
            schema[random.choice(["maximum", "exclusiveMaximum"])] = high
        if random.random() < 0.15 and abs(low) < 10**18 and abs(high) < 10**18:
            schema["multipleOf"] = random.choice([2, 5, 7, 10])

        def fits(value):
            return (("minimum" not in schema or value >= low) and ("exclusiveMinimum" not in schema or value > low)
                    and ("maximum" not in schema or value <= high) and ("exclusiveMaximum" not in schema or value < high)
                    and value % schema.get("multipleOf", 1 if whole else value or 1) == 0)
        # Of few digits, which no bounds refuse.
        near = [int(end) + more for end in (low, high) for more in range(-12, 13)]
        values = [value for value in near + list(range(-20, 21)) if abs(value) < 10**18 and fits(value)]
        if not whole and "multipleOf" not in schema:
            values += [value for value in (0.5, -0.5, 12345.5, -7.25) if fits(value)]
        return (schema, lambda: random.choice(values)) if values else self.far_bounds(depth)

    def nothings(self, _):
        """Values of nothing, and numbers in other spellings: named, and refused."""
        random = self.random
        kind, values, others = random.choice([
            ("string", [""], ["a", "\n", '"']),
            ("integer", [0, -0.0, 0.0, 1e0, 2**53 + 1], [2, -1, 2**53]),
            ("boolean", [False], [True]),
            ("null", [0, False, ""], [None]),
            (None, ["", [], {}, 0, -0.0, 1e0, None, False], []),
        ])
        named = random.sample(values, random.randint(1, min(3, len(values))))
        own = {"const": named[0]} if random.random() < 0.4 else {"enum": named}
        if kind is None:
            written = [int(value) if isinstance(value, float) else value for value in ([own["const"]] if "const" in own else named)]
            return own, lambda: random.choice(written)
        schema = {"type": kind, "not": own}
        if kind == "string" and random.random() < 0.4:
            schema.update(random.choice([{"maxLength": 5}, {"pattern": "^[^x]*$"}, {"minLength": 0}]))
            others = ["a", "b", '"']  # a line feed behind a value is of it where `$` matches before one
        return schema, lambda: random.choice(others)

    def rounds(self, _):
        """Conditions and lists that lead back to where they are."""
        random = self.random
        name = f"Tree{len(self.definitions)}"
        here = {"$ref": f"#/$defs/{name}"}
        leaf = random.choice([{"type": "integer"}, {"const": ""}, {"enum": [0, []]}])
        sample_leaf = lambda: 7 if "type" in leaf else leaf["const"] if "const" in leaf else 0
        if random.random() < 0.5:
            body = {"anyOf": [leaf, {"type": "array", "contains": here}]}
            other = random.choice([None, "x"])

            def sample(levels=2):
                if not levels or random.random() < 0.4:
                    return sample_leaf()
                return random.sample([other, sample(levels - 1)], 2)
        else:
            body = {"type": ["object", "null"], "properties": {"next": here, "value": {}},
                    "if": {"type": "object", "required": ["value"]}, "then": {"properties": {"value": leaf}},
                    "else": {"properties": {"next": True}}}

            def sample(levels=2):
                if not levels:
                    return None
                return {"next": sample(levels - 1), "value": sample_leaf()}
        self.definitions[name] = (body, sample)
        return here, sample
