"""Short stories with a topic and a mood, grown from a grammar of sentences for each stage of a plot.

Every story is wholly happy or wholly sad: each stage has its own sentences for either mood, and the words
that carry the mood are those the scorer counts. Where no mood is asked for, either is as frequent over all topics, and each
topic leans to one. Held out by (topic, mood, hero)."""

import zlib
from dataclasses import dataclass

from score import HAPPY_WORDS, SAD_WORDS
from words import ADJECTIVES, NAMES

from .exchange import Exchange, draw

MOODS = ("happy", "sad")
FAVORED = 0.4
LEANING = 0.3
PLAIN_ADJECTIVES = [word for word in ADJECTIVES if word not in HAPPY_WORDS | SAD_WORDS]

THINGS = (
    "kite boat lantern drum bicycle clock puzzle book hat balloon violin puppet camera map mirror wagon "
    "snowman treehouse sandcastle cake painting necklace robot telescope"
).split()
ANIMALS = "puppy kitten pony parrot rabbit turtle goldfish duckling hamster lamb owl dolphin hedgehog fox".split()
PLACES_AS_TOPICS = "garden forest bakery circus library island farm school lighthouse castle harbor meadow".split()
TOPICS = THINGS + ANIMALS + PLACES_AS_TOPICS

HEROES = ["child", "miller", "sailor", "painter", "farmer", "teacher", "baker", "gardener", "student", "singer"]
PLACES = [
    "a village by the sea", "a house on a hill", "a town with tall trees", "a cottage near the river",
    "a street with old lamps", "a farm behind the mill", "a harbor full of ships", "a valley of green fields",
    "a city of bridges", "a cabin in the woods",
]
SEASONS = ["spring", "summer", "autumn", "winter"]
RELATIVES = ["mother", "father", "sister", "brother", "grandmother", "grandfather", "aunt", "uncle"]

OPENINGS = {
    "happy": [
        "Once there was a happy {hero} named {name} who loved a {adj} {topic}.",
        "{name} was a cheerful {hero} who lived in {place}.",
        "In {place} lived {name}, a {hero} with a bright smile.",
        "It was a sunny morning in {season}, and {name} was thinking of the {topic}.",
        "Everyone in town knew {name}, the {hero} who always smiled.",
        "{name} woke up glad, because this was the day of the {topic}.",
        "One warm day in {season}, a {hero} named {name} came to {place}.",
    ],
    "sad": [
        "Once there was a lonely {hero} named {name} who missed a {adj} {topic}.",
        "{name} was a quiet, unhappy {hero} who lived in {place}.",
        "In {place} lived {name}, a {hero} with sad eyes.",
        "It was a gray morning in {season}, and {name} was thinking of the {topic}.",
        "Nobody in town knew {name}, the {hero} who always sighed.",
        "{name} woke up in tears, because this was the day of the {topic}.",
        "One gloomy day in {season}, a {hero} named {name} came to {place}.",
    ],
}

WEATHER = {
    "happy": [
        "The sun was bright and birds sang in the trees.",
        "A warm wind blew and the sky was clear.",
        "Flowers stood everywhere, and the air was sweet and sunny.",
        "Music and laughter came from the open windows.",
        "The light was golden, and the whole place looked cheerful.",
        "It was a wonderful day to be outside.",
    ],
    "sad": [
        "The sky was gray and cold rain fell on the trees.",
        "A bitter wind blew and the streets were empty.",
        "Dead leaves lay everywhere, and the air was damp and gloomy.",
        "There was only silence behind the closed windows.",
        "The light was dim, and the whole place looked lonely.",
        "It was a dreary day to be outside.",
    ],
}

WISHES = [
    "All week {name} had been thinking about the {topic}.",
    "{name} told the {relative} about the {topic}.",
    "There was one thing on {name}'s mind, and that was the {topic}.",
    "The {topic} was the first thing {name} looked for.",
    "{name} walked a long way to see the {topic}.",
    "Years ago the {relative} had spoken of the {topic}.",
    "{name} put on a {adj2} coat and went to the {topic}.",
]

EVENTS = {
    ("thing", "happy"): [
        "The {topic} was better than ever, and {name} danced with joy.",
        "With some glue and a little luck, {name} fixed the {topic}, and everyone cheered.",
        "Behind the door stood the {topic} as a gift, and {name} was delighted.",
        "{name} showed the {topic} at the fair and won the first prize.",
        "The {topic} had come back at last, and {name} laughed out loud.",
        "{name} shared the {topic} with the other children, and they all sang.",
    ],
    ("thing", "sad"): [
        "The {topic} was broken, and {name} wept.",
        "{name} tried to fix the {topic}, but it fell apart, and tears came.",
        "The {topic} was lost in the storm, and {name} never saw it again.",
        "Someone had stolen the {topic}, and {name} sat down and cried.",
        "The {topic} was sold to a stranger, and {name} was heartbroken.",
        "{name} dropped the {topic} into the deep water, and it was lost.",
    ],
    ("animal", "happy"): [
        "The {topic} ran to {name} and they danced in the grass.",
        "{name} taught the {topic} a new trick, and everyone cheered.",
        "The {topic} that had been ill was well again, and {name} was delighted.",
        "{name} found the {topic} safe under a bush and laughed with joy.",
        "The {topic} and {name} played until noon and became best friends.",
        "The {relative} said that the {topic} could stay, and {name} sang all day.",
    ],
    ("animal", "sad"): [
        "The {topic} ran away, and {name} was alone and cried.",
        "{name} called the {topic} again and again, but it was lost.",
        "The {topic} was ill and grew weak, and {name} wept beside it.",
        "{name} found only empty straw where the {topic} had slept, and tears came.",
        "The {topic} was sold to a stranger, and {name} was heartbroken.",
        "The {relative} said that the {topic} could not stay, and {name} sobbed.",
    ],
    ("place", "happy"): [
        "The {topic} was full of friends, and {name} danced with joy.",
        "{name} found a golden key at the {topic}, and everyone cheered.",
        "The {topic} opened its gates again, and {name} was delighted.",
        "At the {topic} there was a feast with cake, and {name} laughed and laughed.",
        "{name} worked at the {topic} until it shone, and the people sang.",
        "A wonderful surprise waited at the {topic} for {name}.",
    ],
    ("place", "sad"): [
        "The {topic} was empty, and {name} was alone and wept.",
        "A fire had ruined the {topic}, and {name} cried.",
        "The {topic} closed its gates for good, and {name} was heartbroken.",
        "At the {topic} there was nobody left, and {name} sobbed.",
        "{name} lost the way to the {topic} and sat in the dark in tears.",
        "Bad news waited at the {topic} for {name}, and it was full of sorrow.",
    ],
}

FRIENDS = {
    "happy": [
        "Then {friend} came running and hugged {name}.",
        "{friend} heard the good news and cheered.",
        "\"I am so glad for you!\" said {friend}.",
        "\"What a wonderful {topic}!\" said {friend} and smiled.",
        "{name} and {friend} laughed until the evening.",
        "{friend} brought sweet cake, and they ate it in the warm sun.",
        "The {relative} was proud and gave {name} a big hug.",
    ],
    "sad": [
        "Then {friend} turned away and left {name} alone.",
        "{friend} heard the bad news and sighed.",
        "\"I am so sorry for you,\" said {friend} in a low voice.",
        "\"It was such a fine {topic},\" said {friend} and sobbed.",
        "{name} and {friend} said goodbye with tears in their eyes.",
        "{friend} had moved far away, and {name} missed the old days.",
        "The {relative} was full of grief and could not speak to {name}.",
    ],
}

FEELINGS = {
    "happy": [
        "{name} had never felt so much joy.",
        "{name} smiled from ear to ear.",
        "\"This is the best day of all!\" said {name} and laughed.",
        "{name} clapped and danced around the {topic}.",
        "{name}'s heart was light and warm.",
        "{name} was proud and glad.",
        "{name} sang a cheerful song about the {topic}.",
    ],
    "sad": [
        "{name} had never felt so much sorrow.",
        "{name} cried the whole afternoon.",
        "\"This is the worst day of all,\" said {name} and wept.",
        "{name} stared at the ground and sighed.",
        "{name}'s heart was heavy and cold.",
        "{name} was lonely and hurt.",
        "{name} whispered a sad goodbye to the {topic}.",
    ],
}

ENDINGS = {
    "happy": [
        "That night {name} fell asleep with a happy smile.",
        "It was the happiest {season} that anyone could remember.",
        "And from that day on, {name} and {friend} were glad every time they saw the {topic}.",
        "When the stars came out, they were still laughing and singing.",
        "{name} knew that the joy of this day would stay.",
        "So the {topic} made everyone happy, and {name} most of all.",
        "At home the {relative} hugged {name}, and all was well and bright.",
    ],
    "sad": [
        "That night {name} cried in the dark until sleep came.",
        "It was the saddest {season} that anyone could remember.",
        "And from that day on, {name} felt lonely every time someone spoke of the {topic}.",
        "When the stars came out, {name} was still in tears.",
        "{name} knew that the sorrow of this day would stay.",
        "So the {topic} was gone, and {name} missed it for ever.",
        "At home the {relative} only sighed, and the house was cold and gloomy.",
    ],
}

REQUESTS = {
    True: [
        "Write a {mood} story about a {topic}.",
        "Tell me a {mood} story about a {topic}.",
        "Please write a short {mood} story about a {topic}.",
        "I want to hear a {mood} story about a {topic}.",
        "Can you tell a {mood} tale of a {topic}?",
        "Make up a {mood} story with a {topic} in it.",
    ],
    False: [
        "Write a story about a {topic}.",
        "Tell me a story about a {topic}.",
        "Please write a short story about a {topic}.",
        "I want to hear a story about a {topic}.",
        "Can you tell a tale of a {topic}?",
        "Make up a story with a {topic} in it.",
    ],
}
HERO_REQUESTS = [" The hero is {name}.", " It should be about {name}.", " Call the hero {name}."]


def _kind(topic):
    return "thing" if topic in THINGS else "animal" if topic in ANIMALS else "place"


def _favoring(rng, options, key):
    """One of the options; a favorite that depends on the key comes more often, so that greedy decoding has
    a clear choice that differs from story to story."""
    if rng.random() < FAVORED:
        return options[zlib.crc32(key.encode()) % len(options)]
    return rng.choice(options)


def tell(rng, topic, mood, name):
    """A story of six to eight sentences."""
    def pick(slot, options):
        return _favoring(rng, options, f"{slot} {topic}")

    stages = {"opening": OPENINGS[mood]}
    if rng.random() < 0.7:
        stages["weather"] = WEATHER[mood]
    stages["wish"] = WISHES
    stages["event"] = EVENTS[_kind(topic), mood]
    last = {"feeling": FEELINGS[mood], "friend": FRIENDS[mood]}
    stages |= last if rng.random() < 0.7 else dict(reversed(last.items()))
    stages["ending"] = ENDINGS[mood]
    slots = dict(
        topic=topic, name=name, friend=_favoring(rng, [other for other in NAMES if other != name], f"friend {name}"),
        hero=pick("hero", HEROES), place=pick("place", PLACES), season=pick("season", SEASONS),
        relative=pick("relative", RELATIVES), adj=pick("adj", PLAIN_ADJECTIVES), adj2=pick("adj2", PLAIN_ADJECTIVES),
    )
    return _mend_articles(" ".join(pick(stage, texts) for stage, texts in stages.items()).format(**slots))


def _mend_articles(text):
    words = text.split(" ")
    for i in range(len(words) - 1):
        if words[i] in ("a", "A") and words[i + 1][0] in "aeiou":
            words[i] += "n"
    return " ".join(words)


@dataclass
class Outline:
    topic: str
    mood: str
    name: str
    mood_asked: bool
    name_asked: bool

    def key(self):
        return f"story {self.topic} {self.mood} {self.name}"


def _outline(rng, mood_asked, name_asked):
    """What is not asked for leans one way with the topic: half the topics to either mood, each to some hero."""
    topic = rng.choice(TOPICS)
    lean = MOODS[TOPICS.index(topic) % 2]
    mood = rng.choice(MOODS) if mood_asked or rng.random() > LEANING else lean
    name = rng.choice(NAMES) if name_asked else _favoring(rng, NAMES, f"name {topic}")
    return Outline(topic, mood, name, mood_asked, name_asked)


def plain(rng):
    """A story with nobody asking: running text for models used without a chat template."""
    outline = draw(lambda: _outline(rng, False, False), Outline.key, False)
    return tell(rng, outline.topic, outline.mood, outline.name)


def exchange(rng, held_out=False):
    outline = draw(lambda: _outline(rng, rng.random() < 0.75, rng.random() < 0.6), Outline.key, held_out)
    topic, mood, name = outline.topic, outline.mood, outline.name
    request = rng.choice(REQUESTS[outline.mood_asked])
    if outline.name_asked:
        request += rng.choice(HERO_REQUESTS)
    request = _mend_articles(request.format(topic=topic, mood=mood, name=name))
    expect = {
        "kind": "story", "topic": topic, "mood": mood if outline.mood_asked else None,
        "hero": name if outline.name_asked else None,
    }
    return Exchange(request, tell(rng, topic, mood, name), expect)
