"""Greetings, questions about the assistant, echoes, and facts the user states and asks for again.

An intent has a handful of phrasings and fixed replies; small talk itself is closed and has no split. Facts are held
out by the pair of statement and value, echoes by their text."""

from words import CITIES, COLORS, FOODS, NAMES, NOUNS

from .exchange import Exchange, draw

OWN_NAME = "Pilot"

INTENTS = [
    (["Hello!", "Hi!", "Hey there.", "Good morning!", "Good evening.", "Hello, how are you?"],
     ["Hello! How can I help you?"]),
    (["Thank you!", "Thanks a lot.", "Thanks!", "That is great, thank you."], ["You are welcome!"]),
    (["Goodbye!", "Bye!", "See you later.", "That is all for today."], ["Goodbye! Have a nice day."]),
    (["How are you?", "How do you feel today?", "Are you well?"], ["I am fine, thank you. How can I help you?"]),
    (["What can you do?", "How can you help me?", "What are you good at?", "Tell me what you can do."],
     ["I can add numbers, look things up in a list, change JSON objects, tell stories and chat."]),
    (["Are you a human?", "Are you a person?", "Are you a robot?"], ["I am a small language model."]),
    (["Who made you?", "Where do you come from?"], ["I was trained as the demo model of Rudder."]),
    (["Tell me a joke.", "Do you know a joke?"],
     ["Why did the number cross the road? To get to the other sum."]),
    (["What is Rudder?", "Tell me about Rudder."], ["Rudder is a server for language models."]),
    (["Can you keep a secret?"], ["I forget everything when our chat ends."]),
    (["I am bored.", "I do not know what to do."], ["Ask me for a story or give me two numbers to add."]),
    (["Yes.", "Okay.", "Fine.", "Good."], ["Good. What would you like to do next?"]),
    (["No.", "Not now.", "Maybe later."], ["All right. Tell me when you need me."]),
]
NAME_QUESTIONS = ["What is your name?", "Who are you?", "How should I call you?", "Tell me your name."]

FACTS = [
    ("My name is {v}.", "Nice to meet you, {v}.", ["What is my name?", "Do you remember my name?"],
     "Your name is {v}.", NAMES),
    ("I am {v}.", "Nice to meet you, {v}.", ["Who am I?", "What am I called?"], "Your name is {v}.", NAMES),
    ("My favorite color is {v}.", "{v} is a nice color.", ["What is my favorite color?", "Which color do I like?"],
     "Your favorite color is {v}.", COLORS),
    ("I live in {v}.", "I hope that you like {v}.", ["Where do I live?", "In which city do I live?"],
     "You live in {v}.", CITIES),
    ("I like to eat {v}.", "Enjoy your {v}.", ["What do I like to eat?", "Which food do I like?"],
     "You like to eat {v}.", FOODS),
    ("My lucky number is {v}.", "I will remember {v}.", ["What is my lucky number?", "Which number is lucky for me?"],
     "Your lucky number is {v}.", [str(n) for n in range(2, 1000)]),
]

ECHOES = ["Repeat this: {t}", "Say this again: {t}", "Echo the following words: {t}", "Please repeat: {t}"]
ECHO_WORDS = NOUNS + COLORS + NAMES


def reply_expectation(*replies):
    return {"kind": "reply", "any_of": list(replies)}


def talk(rng, name=OWN_NAME):
    """Small talk with an assistant called `name`."""
    if rng.random() < 0.25:
        reply = f"My name is {name}."
        return Exchange(rng.choice(NAME_QUESTIONS), reply, reply_expectation(reply))
    users, replies = rng.choice(INTENTS)
    return Exchange(rng.choice(users), rng.choice(replies), reply_expectation(*replies))


def fact(rng, held_out=False):
    """Two exchanges: the user states a fact, and asks for it (at once, or some turns later)."""
    statement, answer, questions, recalled, values = rng.choice(FACTS)
    value = draw(lambda: rng.choice(values), lambda v: f"fact {statement} {v}", held_out)
    told = answer.format(v=value)
    told, recalled = told[0].upper() + told[1:], recalled.format(v=value)
    return (
        Exchange(statement.format(v=value), told, reply_expectation(told)),
        Exchange(rng.choice(questions), recalled, reply_expectation(recalled)),
    )


def echo(rng, held_out=False):
    text = draw(
        lambda: " ".join(rng.choice(ECHO_WORDS) for _ in range(rng.randint(2, 14))), lambda t: f"echo {t}", held_out)
    return Exchange(rng.choice(ECHOES).format(t=text), text, reply_expectation(text))
