"""The manual and the shells' completions of the packages, made from the binary's own --help: every command, the commands that
some have of their own, and every flag of each. Used by package.py."""

import collections
import re
import subprocess
import sys

FLAG = re.compile(r"^  --(\[no-\])?([a-z0-9-]+)(?: <([^>]*)>)?\s+(.*)$")
COMMAND = re.compile(r"^ +(?:[A-Z][a-z ]*[a-z] {2,})?([a-z][a-z-]+) {2,}(\S.*)$")  # behind its subject, where that is new
MANY = 50  # flags that `serve` has at least

# `parts`: the commands of its own, of a command such as bench, which has no flags then.
Command = collections.namedtuple("Command", "name summary usage flags parts")
Flag = collections.namedtuple("Flag", "name value doc section")  # value: None for a switch


def help_of(binary, *names):
    return subprocess.run([str(binary), *names, "--help"], check=True, capture_output=True, text=True).stdout


def read_flags(text):
    flags, section = [], ""
    for line in text.splitlines():
        if match := FLAG.match(line):
            flags.append(Flag(match[2], None if match[1] else match[3] or "text", match[4], section))
        elif re.fullmatch(r"[a-z_ -]+:", line):
            section = line[:-1]
    return flags


def read_command(binary, summary, *names):
    text = help_of(binary, *names)
    usage = re.search(r"^usage: (.*)$", text, re.M)
    flags = read_flags(text)
    parts = [] if flags else [read_command(binary, match[2], *names, match[1])
                              for match in map(COMMAND.match, text.splitlines()) if match]
    return Command(names[-1], summary, usage[1] if usage else f"rudder {' '.join(names)}", flags, parts)


def read_commands(binary):
    """The commands as the binary tells of them."""
    commands = [read_command(binary, match[2], match[1]) for match in map(COMMAND.match, help_of(binary).splitlines()) if match]
    has_flags = [command for command in commands if command.flags or (command.parts and all(p.flags for p in command.parts))]
    is_whole = len(commands) >= 8 and has_flags == commands
    if not is_whole or not any(command.name == "serve" and len(command.flags) > MANY for command in commands):
        sys.exit("package: --help of the binary is not what the manual is made from")
    return commands


def roff(text):  # a line may break behind a "|"
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("|", "|\\:")
    return re.sub(r"^([.'])", r"\\&\1", text, flags=re.M)


def roff_flags(flags):
    out, section = [], None
    for flag in flags:
        if flag.section != section:
            section = flag.section
            out.append(f".SS {roff(section)}")
        value = "" if flag.value is None else f" <{flag.value}>"
        switch = "[no-]" if flag.value is None else ""
        out += [".TP", f".B {roff('--' + switch + flag.name + value)}", roff(flag.doc)]
    return out


def roff_part(command, part, known):
    """A command of a command: what `serve` has with the same words is named alone."""
    own = [flag for flag in part.flags if flag not in known]
    shared = ", ".join(f"--{flag.name}" for flag in part.flags if flag in known)
    out = [f".SH {roff(f'{command.name} {part.name}'.upper())}", f".B {roff(part.usage)}", ".PP", roff(part.summary), *roff_flags(own)]
    return out + ([".PP", "As of serve: " + roff(shared)] if shared else [])


def manual(commands, version):
    out = [f'.TH RUDDER 1 "" "rudder {version}" "User Commands"', ".SH NAME",
           "rudder \\- LLM inference server with steering and capture", ".SH SYNOPSIS", ".B rudder", ".I COMMAND",
           "[arguments]", ".SH DESCRIPTION",
           "Serves a model over OpenAI's and Anthropic's API. A model is a folder in the Hugging Face layout, or a name of",
           "the hub (ORG/NAME), which is fetched into the hub's cache.", ".SH COMMANDS"]
    for command in commands:
        out += [".TP", f".B {roff(command.name)}", roff(command.summary)]
    known = next(set(command.flags) for command in commands if command.name == "serve")
    for command in commands:
        if command.flags:
            out += [f".SH {roff(command.name.upper())}", f".B {roff(command.usage)}", *roff_flags(command.flags)]
        for part in command.parts:
            out += roff_part(command, part, known)
    out += [".SH ENVIRONMENT", ".TP", ".B RUDDER_NAME", "Every flag as a variable: RUDDER_MAX_MODEL_LEN is",
            "\\-\\-max\\-model\\-len. Flags win.", ".TP", ".B HF_HOME, HF_HUB_CACHE, HF_ENDPOINT, HF_TOKEN, HF_HUB_OFFLINE",
            "As huggingface_hub reads them: where the cache is, where the hub is, who asks, and whether it is asked.",
            ".SH FILES", ".TP", ".I /etc/rudder/rudder.env", "Variables of the service.", ""]
    return "\n".join(out)


def words(flags):
    for flag in flags:
        yield f"--{flag.name}"
        if flag.value is None:
            yield f"--no-{flag.name}"


def bash_completion(commands):
    def case(name, flags):
        return f"    '{name}') words='{' '.join(words(flags))}' ;;"

    cases = "\n".join(case(f"{c.name} {p.name}", p.flags) for c in commands for p in c.parts)
    plain = "\n".join(f"    '{c.name} '*) words='{' '.join(words(c.flags))}' ;;" for c in commands if c.flags)
    parts = "\n".join(f"    {c.name}) words='{' '.join(p.name for p in c.parts)}' ;;" for c in commands if c.parts)
    names = " ".join(command.name for command in commands)
    return f"""# Completions of rudder for bash.
_rudder() {{
  local current=${{COMP_WORDS[COMP_CWORD]}} words=
  COMPREPLY=()
  if [ "$COMP_CWORD" -eq 1 ]; then
    COMPREPLY=($(compgen -W '{names} --help --version' -- "$current"))
    return
  fi
  if [ "$COMP_CWORD" -eq 2 ]; then
    case ${{COMP_WORDS[1]}} in
{parts}
    esac
    if [ -n "$words" ]; then
      COMPREPLY=($(compgen -W "$words --help" -- "$current"))
      return
    fi
  fi
  case "${{COMP_WORDS[1]}} ${{COMP_WORDS[2]}}" in
{cases}
{plain}
  esac
  if [[ $current == -* ]]; then
    COMPREPLY=($(compgen -W "$words --help" -- "$current"))
  else
    COMPREPLY=($(compgen -f -- "$current"))
  fi
}}
complete -o filenames -F _rudder rudder
"""


def quoted(text, marks="'"):
    return "'" + re.sub(rf"([{re.escape(marks)}\\])", r"\\\1", text) + "'"


def zsh_arguments(flags):
    def spec(flag, name):
        doc = re.sub(r"[\[\]:']", " ", flag.doc)[:80]
        return f"'--{name}[{doc}]{'' if flag.value is None else ':value:_files'}'"

    each = (spec(f, f.name) if f.value is not None else f"{spec(f, f.name)} {spec(f, 'no-' + f.name)}" for f in flags)
    return f"_arguments {' '.join(each)} '*:file:_files'"


def zsh_choice(commands, indent):
    """What offers the names of these at the second word, and otherwise what the one that stands there takes."""
    lines = ["local -a commands=("]
    lines += ["  '{}:{}'".format(c.name, c.summary.replace("'", " ").replace(":", "\\:")) for c in commands]
    lines += [")", "if (( CURRENT == 2 )); then", "  _describe command commands", "  return", "fi", "local command=$words[2]",
              "shift words", "(( CURRENT-- ))", "case $command in"]
    for command in commands:
        inner = zsh_choice(command.parts, "    ") if command.parts else f"    {zsh_arguments(command.flags)}"
        lines += [f"  {command.name})", inner, "    ;;"]
    lines.append("esac")
    return "\n".join(line if "\n" in line else indent + line for line in lines)


def zsh_completion(commands):
    return f"""#compdef rudder
# Completions of rudder for zsh.
_rudder() {{
{zsh_choice(commands, "  ")}
}}
_rudder "$@"
"""


def fish_completion(commands):
    lines = ["# Completions of rudder for fish.",
             "function __rudder_at; set -l there (commandline -opc)[2..-1]; test \"$there[1..(count $argv)]\" = \"$argv\"; end",
             "function __rudder_chooses; set -l there (commandline -opc)[2..-1]; test \"$there\" = \"$argv\"; end"]

    def add(command, before):
        at = " ".join([*before, command.name])
        lines.append(f"complete -c rudder -n '__rudder_chooses {' '.join(before)}' -f -a {command.name} -d {quoted(command.summary)}")
        for flag in command.flags:
            required = "" if flag.value is None else " -r"
            lines.append(f"complete -c rudder -n '__rudder_at {at}' -l {flag.name}{required} -d {quoted(flag.doc[:80])}")
            if flag.value is None:
                lines.append(f"complete -c rudder -n '__rudder_at {at}' -l no-{flag.name}")
        for part in command.parts:
            add(part, [*before, command.name])

    for command in commands:
        add(command, [])
    return "\n".join(lines) + "\n"
