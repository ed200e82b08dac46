"""Random JSON Schemas of lists: a part of random_schemas."""


class Lists:
    def array(self, depth):
        items = self.any(depth - 1)
        low, high = self.random.randint(0, 2), self.random.randint(2, 4)
        schema = {"type": "array", "items": items[0]}
        if self.random.random() < 0.6:
            schema["minItems"] = low
        if self.random.random() < 0.6:
            schema["maxItems"] = high
        return schema, lambda: [items[1]() for _ in range(self.random.randint(low, high))]

    def prefix(self, depth):
        first = [self.any(depth - 1) for _ in range(self.random.randint(1, 3))]
        schema = {"type": "array", "prefixItems": [f[0] for f in first]}
        low = self.random.randint(0, len(first))
        if low:
            schema["minItems"] = low
        rest = None
        if self.random.random() < 0.4:
            rest = self.any(depth - 1)
            schema["items"] = rest[0]

        def sample():
            count = self.random.randint(low, len(first))
            out = [f[1]() for f in first[:count]]
            if rest and count == len(first):
                out += [rest[1]() for _ in range(self.random.randint(0, 2))]
            return out
        return schema, sample

    def containing(self, depth):
        random = self.random
        items, contains, other, match = random.choice([
            (None, {"type": "string"}, [1, None, [2], {"k": "s"}], ["a", ""]), (None, True, [], [1, "x", None]), (None, {}, [], [{}, 7]),
            ({"type": ["integer", "null"]}, {"type": "integer", "minimum": 3}, [None, 1, 2], [3, 12]),
            ({"type": "string", "maxLength": 3}, {"enum": ["a", "bcd"]}, ["b", "ab", ""], ["a", "bcd"]),
            (None, {"type": "object", "required": ["k"], "properties": {"k": {"const": 1}}}, [{"j": 1}, 3], [{"k": 1}])])
        schema = {"type": "array", "contains": contains}
        if items is not None:
            schema["items"] = items
        if random.random() < 0.3:
            schema["minItems"] = random.randint(0, 1)

        def sample():
            list_of = lambda: [random.choice(other) for _ in range(random.randint(0, 2) if other else 0)]
            return list_of() + [random.choice(match)] + list_of()
        return schema, sample

    # Items that differ.

    def unique(self, depth):
        kind = self.random.randrange(5)
        if kind == 0:
            return self.unique_strings()
        if kind == 4:
            return self.unique_numbers()
        if kind == 1:
            low, high = self.random.randint(-3, 0), self.random.randint(1, 4)
            return {"type": "array", "items": {"type": "integer", "minimum": low, "maximum": high}, "uniqueItems": True}, lambda: sorted(
                self.random.sample(range(low, high + 1), self.random.randint(0, high - low)))
        values = self.random.sample(["a", "b", 1, 2.5, None, True, "c"], self.random.randint(1, 5))
        low = self.random.randint(0, len(values))
        schema = {"type": "array", "items": {"enum": values}, "uniqueItems": True, "minItems": low}
        return schema, lambda: self.random.sample(values, self.random.randint(low, len(values)))

    def unique_numbers(self):
        random = self.random
        items, numbers = random.choice([
            ({"type": "integer"}, [0, 1, -1, 12, 123, 2]), ({"type": "integer", "minimum": 5, "exclusiveMaximum": 700}, [5, 50, 500, 699]),
            ({"type": "number"}, [0, 1.5, -1.5, 15, 0.25, 1]), ({"type": "number", "minimum": -2, "maximum": 90.5}, [-2, 0, 0.5, 9.25, 90.5]),
            ({"type": "number", "multipleOf": 0.1, "minimum": 0, "maximum": 0.4}, [0, 0.1, 0.2, 0.4]),
            ({"type": "integer", "not": {"enum": [3]}}, [4, 30, -3]), ({"anyOf": [{"type": "integer", "maximum": -5}, {"enum": [1, 2.5]}]}, [1, 2.5, -7])])
        if random.random() < 0.3:
            key = {"type": "object", "properties": {"k": items, "v": {"type": "boolean"}}, "required": ["k"], "additionalProperties": False}
            if "type" in items:
                items, numbers = key, [{"k": number} for number in numbers]
        schema = {"type": "array", "items": items, "uniqueItems": True, "minItems": random.randint(0, 2)}
        if random.random() < 0.5:
            schema["maxItems"] = random.randint(3, 9)

        def value():
            return random.sample(numbers, random.randint(schema["minItems"], min(3, len(numbers))))
        return schema, value

    def unique_objects(self):
        """Objects that differ by a required string."""
        random = self.random
        name = random.choice([{"type": "string"}, {"type": "string", "pattern": "^[ab]+$"}])
        item = {"type": "object", "properties": {"k": {"enum": [1, 2]}, "name": name}, "required": random.sample(["k", "name"], 2)}
        schema = {"type": "array", "items": item, "uniqueItems": True, "minItems": random.randint(0, 2)}
        if random.random() < 0.5:
            schema["maxItems"] = random.choice([3, 80])

        def value():
            names = random.sample(["a", "b", "ab", "ba", "aa"], random.randint(schema["minItems"], 3))
            return [{"k": random.randint(1, 2), "name": name} for name in names]
        return schema, value

    def unique_mixed(self):
        """Items that a string tells apart, and one other."""
        random = self.random
        by_name = {"type": "object", "properties": {"name": {"type": "string"}, "k": {"type": "integer"}}, "additionalProperties": False}
        others, fit = random.choice([({"type": "integer"}, [1, -2]), ({"enum": [1, None, "a"]}, [1, None]), ({"type": "array"}, [[], [1]]),
                                     ({"type": ["number", "boolean"]}, [1.5, True])])
        items, apart, other = random.choice([
            ({"anyOf": [{"type": "string"}, others]}, ["a", "b", "", "ab"], fit), ({}, ["a", "b"], [1, [2], {"k": 1}]),
            (by_name, [{"name": "a"}, {"name": "b", "k": 1}, {"name": "", "k": 1}], [{}, {"k": 2}]),
            ({"oneOf": [by_name, {"type": "string"}]}, [{"name": "a"}, {"name": "b", "k": 1}, "c", "d"], [{}, {"k": 2}])])

        def value():
            chosen = random.sample(apart, random.randint(0, len(apart)))
            if random.random() < 0.5:
                chosen.insert(random.randint(0, len(chosen)), random.choice(other))
            return chosen
        return {"type": "array", "items": items, "uniqueItems": True}, value

    def unique_strings(self):
        random = self.random
        if random.random() < 0.4:
            return self.unique_objects()
        if random.random() < 0.3:
            return self.unique_mixed()
        items, texts = random.choice([
            ({"type": "string"}, ["a", "b", "c", "ab", "ba", "bc", "cc"]), ({"type": "string", "minLength": 1}, ["a", "b", "ab"]),
            ({"type": "string", "pattern": "^[a-c]+$"}, ["a", "c", "abc"]), ({"type": "string", "maxLength": 2}, ["", "a", "ab", "\n\t"]),
            ({"type": "string", "pattern": "^[ab]{1,2}$"}, ["a", "b", "ab", "bb"]), ({"type": "string", "pattern": "^(a|b?c)$"}, ["a", "c", "bc"])])
        schema = {"type": "array", "items": items, "uniqueItems": True, "minItems": random.randint(0, 2)}
        if random.random() < 0.5:
            schema["maxItems"] = random.randint(3, 9)

        def value():  # beside another option that would take them, equal strings do not come either
            return random.sample(texts, random.randint(schema["minItems"], min(schema.get("maxItems", 5), len(texts))))
        return schema, value
