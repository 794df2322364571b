"""C++ sources as tokens: enough to find calls, conditions and functions in our own kernels."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

TOKEN = re.compile(
    r"""(?P<skip>\s+ | //[^\n]* | /\*.*?\*/ | ^[ \t]*\#(?:[^\n\\]|\\.)*)
      | (?P<token>"(?:[^"\\\n]|\\.)*" | '(?:[^'\\\n]|\\.)*' | [A-Za-z_]\w* | [.]?\d(?:'?[\w.])*
          | :: | -> | \+\+ | -- | && | \|\| | << | [-+*/%&|^<>=!]= | .)""",
    re.VERBOSE | re.DOTALL | re.MULTILINE,
)
PAIRS = {"(": ")", "[": "]", "{": "}"}
# Tokens that end an operand of && and ||.
ENDS = {"(", ")", "[", "]", "{", "}", ",", ";", "?", ":", "&&", "||", "=", "return"}
BEFORE_A_CALL = {"return", "else", "do", "throw"}  # other words before a name declare it
NOT_FUNCTIONS = {"if", "constexpr", "for", "while", "switch", "catch"}


class Error(Exception):
    """The sources do not have the form that the rules expect."""


class Function(NamedTuple):
    """A function of the name, its body between the tokens `begin` and `end`, both braces."""

    name: str
    begin: int
    end: int


class Source:
    """A file. Positions are indices of tokens; a span is the first and the last token."""

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        self.source = text
        self.starts: list[int] = []
        self.tokens: list[str] = []
        code = list(text)  # without comments, of the same length
        for m in TOKEN.finditer(text):
            if m["token"] is not None:
                self.starts.append(m.start())
                self.tokens.append(m["token"])
            else:
                for i in range(m.start(), m.end()):
                    code[i] = " "
        self.code = "".join(code)
        self.matches: dict[int, int] = {}
        stack: list[int] = []
        for i, token in enumerate(self.tokens):
            if token in PAIRS:
                stack.append(i)
            elif token in PAIRS.values():
                if not stack or PAIRS[self.tokens[stack[-1]]] != token:
                    raise self.error(i, f"unbalanced {token}")
                self.matches[i] = stack.pop()
                self.matches[self.matches[i]] = i
        if stack:
            raise self.error(stack[-1], f"unbalanced {self.tokens[stack[-1]]}")
        self.functions = list(self._functions())

    @staticmethod
    def read(path: Path) -> Source:
        return Source(path.name, path.read_text(encoding="utf-8"))

    def line(self, i: int) -> int:
        return self.source.count("\n", 0, self.starts[i]) + 1

    def error(self, i: int, what: str) -> Error:
        return Error(f"{self.name}:{self.line(i)}: {what}")

    # ---- tokens

    def at(self, i: int, *tokens: str) -> bool:
        return i >= 0 and tuple(self.tokens[i : i + len(tokens)]) == tokens

    def all_of(self, token: str) -> list[int]:
        return [i for i, t in enumerate(self.tokens) if t == token]

    def find(self, token: str, i: int) -> int:
        """Returns the next such token that is not within brackets."""
        while self.tokens[i] != token:
            i = self.match(i) + 1 if self.tokens[i] in PAIRS else i + 1
        return i

    def match(self, i: int) -> int:
        return self.matches[i]

    def begin_of(self, i: int) -> int:
        return self.starts[i]

    def end_of(self, i: int) -> int:
        return self.starts[i] + len(self.tokens[i])

    def text(self, first: int, last: int) -> str:
        return " ".join(self.code[self.begin_of(first) : self.end_of(last)].split())

    # ---- expressions

    def split(self, first: int, last: int, separator: str) -> list[tuple[int, int]]:
        parts, i, begin = [], first, first
        while i <= last:
            if self.tokens[i] == separator:
                parts.append((begin, i - 1))
                begin = i + 1
            i = self.match(i) + 1 if self.tokens[i] in PAIRS else i + 1
        return [*parts, (begin, last)] if begin <= last else parts

    def operand(self, i: int) -> tuple[int, int]:
        """Returns the operand of && or ||, or the whole condition, that contains the token."""
        first, last = i, i
        if self.tokens[i] in PAIRS.values():
            first = self.match(i)
        while self.tokens[first - 1] not in ENDS or self.tokens[first - 1] in PAIRS.values():
            first -= 1
            if self.tokens[first] in PAIRS.values():
                first = self.match(first)
        while self.tokens[last + 1] not in ENDS or self.tokens[last + 1] in PAIRS:
            last += 1
            if self.tokens[last] in PAIRS:
                last = self.match(last)
        return first, last

    def sufficient(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        """Returns the operands whose truth weakens the condition, each once.

        A disjunction is true with any of its operands: it counts as one, except for its inner
        operands.
        """
        while self.at(first, "(") and self.match(first) == last:
            first, last = first + 1, last - 1
        either = self.split(first, last, "||")
        both = self.split(first, last, "&&")
        if len(either) > 1:
            yield first, last
            for part in either:
                weaker = list(self.sufficient(*part))
                if len(weaker) > 1:  # a conjunction
                    yield from weaker
        elif len(both) > 1:
            for part in both:
                yield from self.sufficient(*part)
        else:
            yield first, last

    def conditional(self, first: int, last: int) -> tuple[str, list[tuple[int, int]]]:
        """Of `a ? b : c`, the text of a, and b and c; nothing of anything else."""
        question, colon = (self.split(first, last, mark)[0][1] + 1 for mark in "?:")
        if question > last:
            return "", []
        return self.text(first, question - 1), [(question + 1, colon - 1), (colon + 1, last)]

    # ---- functions and calls

    def _functions(self) -> Iterator[Function]:
        for i, token in enumerate(self.tokens):
            named = re.fullmatch(r"[A-Za-z_]\w*", token) and token not in NOT_FUNCTIONS
            if not named or not self.at(i + 1, "(") or self.tokens[i - 1] in (":", ","):
                continue
            j = self.match(i + 1) + 1
            while self.tokens[j : j + 1] in (["const"], ["noexcept"]):
                j += 1
            while self.at(j, ":") or self.at(j, ","):  # the members of a constructor
                j = self.match(j + 2) + 1 if j + 2 in self.matches else len(self.tokens)
            if self.at(j, "{"):
                yield Function(token, j, self.match(j))

    def function_at(self, i: int) -> Function:
        around = [f for f in self.functions if f.begin <= i <= f.end]
        if not around:
            raise self.error(i, f"{self.tokens[i]} is used outside of any function")
        return around[-1]

    def calls(self, name: str) -> Iterator[int]:
        """Where the function is called, which is every place but its definition."""
        for i in self.all_of(name):
            before, after = self.tokens[i - 1], i + 1
            if self.at(after, "<"):
                after = self.find(">", after) + 1
            word = re.fullmatch(r"\w+", before) and before not in BEFORE_A_CALL
            if word and self.at(after, "("):
                continue  # a definition: its type stands before it
            if not self.at(after, "("):
                raise self.error(i, f"{name} is used, but not called; no rule can weaken that")
            yield i

    def arguments(self, call: int) -> list[tuple[int, int]]:
        begin = self.find("(", call)
        return self.split(begin + 1, self.match(begin) - 1, ",")

    def poll_of(self, call: int) -> tuple[int, int]:
        """Returns the body of the lambda that a call of `wait` polls with."""
        arguments = self.arguments(call)
        known = len(arguments) in (6, 7)  # the last, whom it waits for, may be left out
        first, last = arguments[4] if known else (call, call)
        if first == last and known:
            name, begin = self.tokens[first], self.function_at(call).begin
            for i in range(call - 1, begin, -1):
                if self.at(i, name, "=", "["):
                    first = i + 2
                    break
        body = self.match(first) + 1 if self.at(first, "[") else -1
        if body > 0 and self.at(body, "("):
            body = self.match(body) + 1
        if not self.at(body, "{"):
            raise self.error(
                call,
                "this wait does not poll with a lambda, in place or named just before, as its "
                "fifth argument of six or seven; teach `poll_of` its form",
            )
        return body, self.match(body)
