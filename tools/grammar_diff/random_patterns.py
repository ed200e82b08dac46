"""Random regular expressions, each with a way to draw strings that it matches from end to end."""

import string

TEXT = string.ascii_letters + string.digits + " _-.,:'{}[]" + '"\\/\n\té€😀\u0001'


class Patterns:
    """Regular expressions, with strings that they match from end to end."""

    def __init__(self, random):
        self.random = random

    def atom(self, depth):
        random = self.random
        kind = random.randrange(7 if depth > 0 else 5)
        if kind == 0:
            text = random.choice(["a", "bc", "x", "-", "_", "é", "\\.", "\\{", '"', "/"])
            return text, lambda: text.replace("\\", "")
        if kind == 1:
            return "[a-f0-9]", lambda: random.choice("abcdef0123456789")
        if kind == 2:
            return "\\d", lambda: random.choice(string.digits)
        if kind == 3:
            return "[^a-z\\\\]", lambda: random.choice('AZ09 _"é\n')
        if kind == 4:
            return "\\w", lambda: random.choice(string.ascii_letters + "_0")
        inner = self.alternatives(depth - 1) if kind == 5 else self.row(depth - 1)
        return f"({'?:' if random.random() < 0.5 else ''}{inner[0]})", inner[1]

    def row(self, depth):
        parts = [self.repeated(depth) for _ in range(self.random.randint(1, 3))]
        return "".join(p[0] for p in parts), lambda: "".join(p[1]() for p in parts)

    def repeated(self, depth):
        random = self.random
        text, draw = self.atom(depth)
        low, high, mark = random.choice(
            [(1, 1, ""), (1, 1, ""), (0, 4, "*"), (1, 4, "+"), (0, 1, "?"), (2, 3, "{2,3}"), (2, 2, "{2}"), (1, 4, "{1,}")])
        if mark and len(text) > 1 and not text.startswith(("[", "(", "\\")):
            text = f"(?:{text})"
        return text + mark, lambda: "".join(draw() for _ in range(random.randint(low, high)))

    def long(self, _):
        """Long repetitions, without groups: `re` would try those in all ways."""
        parts = []
        count = self.random.randint(1, 2)
        for _ in range(count):
            text, letters = self.random.choice([("[a-f0-9]", "abcdef0123456789"), ("[^a-z\\\\]", 'AZ09 _"é\n€'), ("[é-ü]", "éêü")])
            low, high = self.random.choice([(3, 40), (0, 90), (70, 70), (100, 300)][:4 if count == 1 else 3])
            parts.append((f"{text}{{{low},{high}}}", letters, low, high))
        draw = lambda: "-".join("".join(self.random.choices(p[1], k=self.random.choice([p[2], p[3], self.random.randint(p[2], p[3])]))) for p in parts)
        return "-".join(p[0] for p in parts), draw

    def alternatives(self, depth):
        rows = [self.row(depth) for _ in range(self.random.randint(2, 3))]
        return "|".join(r[0] for r in rows), lambda: self.random.choice(rows)[1]()
