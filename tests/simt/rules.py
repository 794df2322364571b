"""The places that keep the kernels correct, and the weakened form of each: the rules of mutants.py.

CALLS has the replacements of calls. STRUCTURES are rules for places that are not a call alone: the
conditions of waits, verdicts, the order of stores.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from sources import Source

WEAK_LOAD = "decltype({call})(ld_weak<sizeof *({0})>({0}))"
WEAK_STORE = "st_weak<sizeof *({0})>({0}, {1})"


class Rule(NamedTuple):
    """A replacement of a call, or of one of its arguments. {0} is its first argument."""

    kind: str
    text: str
    argument: int | None = None
    everywhere: bool = False  # as one mutant for all calls of a file, besides those for each

    def arguments(self) -> int:
        """Returns the number of arguments that a call must have."""
        used = [int(n) for n in re.findall(r"\{(\d)\}", self.text)]
        return 1 + max([*used, -1 if self.argument is None else self.argument])


# Calls of these functions, each with its weaker forms.
CALLS: dict[str, list[Rule]] = {
    # memory: how it is accessed, in the order of cuda/ptx.cuh
    "ld_acquire": [Rule("relaxed", "ld_relaxed({0})")],
    "ld_relaxed": [Rule("weak", WEAK_LOAD)],
    "st_release": [Rule("weak", WEAK_STORE), Rule("dropped", "void()")],
    "st_relaxed": [Rule("weak", WEAK_STORE), Rule("dropped", "void()")],
    "fence_acq_rel": [Rule("dropped", "void()")],
    "claim": [Rule("by everyone", "true")],
    "count_round": [
        Rule("relaxed", "count_round_relaxed({0}, {1})"),
        Rule("never from 0 again", "~uint32_t(0)", 1),
        Rule("from the end", "({1} - count_round({0}, {1}))"),
    ],
    "ld_relaxed16": [Rule("weak", "ld_weak16({0})")],
    "st_relaxed16": [Rule("weak", "st_weak16({0}, {1})")],
    "ld_line16": [Rule("weak", "ld_weak16({0})")],
    "st_line16": [Rule("weak", "st_weak16({0}, {1})")],
    # threads that meet
    "syncwarp": [Rule("dropped", "void()")],
    "all_lanes": [Rule("of this lane alone", "bool({0})")],
    "from_lane": [Rule("from this lane", "uint32_t({0})")],
    "barrier_or": [Rule("dropped", "bool({2})")],
    "agree": [Rule("dropped", "({2})")],
    # waits
    "wait_slots": [Rule("not for data", "false", 0), Rule("not for credit", "false", 1)],
    "wait_finished": [Rule("dropped", "Verdict::ok")],
    "look": [Rule("dropped", "Verdict::ok")],
    # what a rank that gives up tells others
    "poison_links": [Rule("dropped", "void()")],
    # flags
    "ll_flag": [Rule("constant", "0", 0), Rule("constant", "0", 0, everywhere=True)],
    "ll128_flag": [Rule("constant", "0", 0), Rule("constant", "0", 0, everywhere=True)],
    "ll_next_flag": [Rule("the same", "{0}")],
    "ll_rewrites_slot": [Rule("never", "false")],
}

# The rest of cuda/ptx.cuh, with the reason why no rule weakens it.
ORDERS_NOTHING = {
    "ld_weak16": "weak already: ordered by what CALLS weakens",
    "st_weak16": "weak already",
    "ld_stream16": "weak already",
    "st_stream16": "weak already",
    "ld_weak": "weak already",
    "st_weak": "weak already; what a launch leaves has rules, `counters` and `reports`",
    "ld_shared": "ordered by the barrier at the beginning, an `agree`",
    "st_shared": "ordered by the barrier at the beginning, an `agree`",
    "global_address": "an address",
    "shared_address": "an address",
    "thread_index": "who am I",
    "thread_count": "who am I",
    "block_index": "who am I",
    "block_count": "who am I",
    "in_register": "a number, where it is kept",
    "nanoseconds": "a time",
    "rest": "a pause: waits are correct without",
    "RK_DEVICE": "how a function is declared",
    "RK_KERNEL": "how a kernel is declared",
    "RK_ARGUMENT": "how an argument is declared",
    "RK_SHARED": "how shared memory is declared",
    "RK_NO_UNROLL": "how a loop is compiled",
}

# Files of csrc/cuda with kernels that are not weakened, with the reason.
ELSEWHERE = {
    "probe.cu": "no ring runs it, so none would miss what it lacks; probe_test.cpp does, and an "
    "ordering that it lacked would refuse a ring, not give wrong sums",
    "messages.cu": "its links are the ring's, which are mutated; that a message waits for the one "
    "before it is run by tests/torch/test_fake_ranks.py alone",
}


class Choice(NamedTuple):
    """A weakened form of the tokens from `first` to `last`, or what is put before `first`."""

    first: int
    last: int  # first - 1: nothing is replaced, `text` is put there as it is
    kind: str
    text: str
    arguments: tuple[tuple[int, int], ...] = ()  # for {0}, {1}, ...
    everywhere: str = ""  # choices of the same name are one mutant

    @property
    def span(self) -> tuple[int, int]:
        return self.first, self.last

    @property
    def inserted(self) -> bool:
        return self.last < self.first

    def same_as(self, other: Choice) -> bool:
        return (self.span, self.text, self.everywhere) == (other.span, other.text, other.everywhere)


# ---- Rules for more than a call ----------------------------------------------------------------


def polls(s: Source) -> Iterator[Choice]:
    """Skips a wait: each condition that ends it is taken for granted."""
    for call in s.calls("wait"):
        body = s.poll_of(call)
        for i in range(*body):
            if s.at(i, "return") and not s.at(i + 1, "true"):
                condition = (i + 1, s.find(";", i) - 1)
            elif s.at(i, "if", "(") and s.at(s.match(i + 1) + 1, "return", "true"):
                condition = (i + 2, s.match(i + 1) - 1)
            else:
                continue
            for leaf in s.sufficient(*condition):
                yield Choice(*leaf, f"poll: {s.text(*leaf)} taken for granted", "true")


def flags(s: Source) -> Iterator[Choice]:
    """Yields mutants that take the flag of each word of a line for the wanted one."""
    for i in s.all_of("flag"):
        if s.at(i - 1, "==") or s.at(i - 1, "!="):
            weaker = "true" if s.at(i - 1, "==") else "false"
            yield Choice(*s.operand(i), f"{s.text(*s.operand(i))} taken for granted", weaker)


def reloads(s: Source) -> Iterator[Choice]:
    """Keeps a value that was loaded while polling, where it should be loaded once more."""
    for call in s.calls("wait"):
        begin, end = s.poll_of(call)
        for i in range(begin, end):
            if not s.at(i, "const", "Words"):
                continue
            stop = s.find(";", i)
            parts = [s.text(*part) for part in s.split(i + 2, stop - 1, ",")]
            names, loads = zip(*(part.split(" = ", 1) for part in parts), strict=True)
            for j in range(call, s.function_at(call).end):
                again = s.at(j + 1, "=", "{") and s.split(j + 3, s.match(j + 2) - 1, ",")
                if again and [s.text(*part) for part in again] == list(loads):
                    kind = f"{s.text(j, j)} not loaded once more"
                    kept = f"{s.text(j, j)} = {{{', '.join(names)}}};"
                    group = f"{s.name} {s.function_at(call).name} {kind}"
                    yield Choice(stop + 1, stop, kind, f"if ({{mutated}}) {kept} ", (), group)
                    yield Choice(j, j - 1, kind, "if (!{mutated}) ", (), group)


def poisons(s: Source) -> Iterator[Choice]:
    """A poisoned counter is taken for one that counts, or passes unseen: each, and all together."""
    for i in s.all_of("kPoisoned"):
        if s.at(i - 1, "!="):
            yield Choice(*s.operand(i), f"{s.text(*s.operand(i))} always", "true")
        elif s.at(i - 1, "=="):
            yield Choice(*s.operand(i), f"{s.text(*s.operand(i))} ignored", "false")
            yield Choice(*s.operand(i), "no poison is seen", "false", (), "no poison is seen")
        elif not s.at(i - 1, ",") or not s.at(i + 1, ")"):  # else given to a store
            raise s.error(i, "kPoisoned is used in a way that `poisons` does not know")
    for call in s.calls("st_relaxed"):
        if s.text(*s.arguments(call)[1]) == "kPoisoned":
            span = call, s.match(call + 1)
            yield Choice(*span, "no poison is stored", "void()", (), "no poison is stored")


def aborts(s: Source) -> Iterator[Choice]:
    """Ignores each reason to give up, and each verdict that reports it."""
    for i in s.all_of("if"):
        close = s.match(i + 1) if s.at(i + 1, "(") else i
        if s.at(close + 1, "return", "Verdict", "::", "aborted"):
            for leaf in s.split(i + 2, close - 1, "||"):
                yield Choice(*leaf, f"{s.text(*leaf)} ignored", "false")
    for i in s.all_of("Verdict"):
        if s.at(i - 1, "?") and s.at(i, "Verdict", "::", "ok", ":"):
            yield Choice(*s.operand(i - 2), f"{s.text(*s.operand(i - 2))} always", "true")
        elif s.at(i - 1, ":") and s.at(i, "Verdict", "::", "ok") and s.at(i - 5, "?"):
            yield Choice(*s.operand(i - 6), f"{s.text(*s.operand(i - 6))} never", "false")
        elif s.at(i - 1, "!="):
            yield Choice(*s.operand(i), f"{s.text(*s.operand(i))} ignored", "false")
        elif s.at(i - 1, "=="):
            yield Choice(*s.operand(i), f"{s.text(*s.operand(i))} always", "true")
            yield Choice(*s.operand(i), f"{s.text(*s.operand(i))} never", "false")


def off_by_one(s: Source) -> Iterator[Choice]:
    """Yields mutants whose wait for slots ends one slot too early."""
    for i in s.all_of("ahead"):
        if s.at(i + 1, "="):
            condition, branches = s.conditional(i + 2, s.find(";", i) - 1)
            for branch, sign in zip(branches, ("", "not ")):
                kind = f"{s.text(i, i)} one more if {sign}{condition}"
                yield Choice(*branch, kind, "(({0}) + 1)", (branch,))
            if not branches:
                whole = i + 2, s.find(";", i) - 1
                yield Choice(*whole, f"{s.text(i, i)} one more", "(({0}) + 1)", (whole,))


def counters(s: Source) -> Iterator[Choice]:
    """Yields mutants whose launch does not record how far it came."""
    for call in s.calls("st_weak"):
        if s.function_at(call).name == "end":
            last = s.match(s.find("(", call))
            kind = f"{s.text(*s.arguments(call)[1])} not stored"
            yield Choice(call, last, kind, "void()")


def reports(s: Source) -> Iterator[Choice]:
    """Yields mutants that leave out a field in the report of a failed wait."""
    for call in s.calls("st_weak"):
        if s.function_at(call).name == "record":
            field = s.text(*s.arguments(call)[0]).rpartition("->")[2]
            yield Choice(call, s.match(s.find("(", call)), f"{field} not recorded", "void()")


def empty_chunks(s: Source) -> Iterator[Choice]:
    """A step without data is not taken: by either side, or by the one that sends."""
    for f in s.functions:
        if f.name == "perform":
            empty = "if ({mutated} && chunk.count == 0%s) return Verdict::ok;"
            for kind, more in (("skipped", ""), ("not sent", " && sends(verb)")):
                yield Choice(f.begin + 1, f.begin, f"empty chunk {kind}", " " + empty % more)


def early_stores(s: Source) -> Iterator[Choice]:
    """Yields mutants that make a store before the fence in front of it."""
    for call in s.calls("fence_acq_rel"):
        i = s.find(";", call) + 1
        while s.at(i, "if", "("):
            condition, end = s.text(i + 2, s.match(i + 1) - 1), s.find(";", i)
            kind = f"{s.text(s.match(i + 1) + 1, end - 1)} before the fence"
            group = f"{s.name} {s.function_at(call).name} {kind}"
            early = f"if ({{mutated}} && ({condition})) {s.text(s.match(i + 1) + 1, end)} "
            yield Choice(call, call - 1, kind, early, (), group)
            yield Choice(i, i - 1, kind, "if (!{mutated}) ", (), group)
            i = end + 1


STRUCTURES = [
    *(polls, flags, reloads, poisons, aborts, off_by_one, counters, reports, empty_chunks),
    early_stores,
]


def called(s: Source, name: str) -> Iterator[Choice]:
    """Returns the rules of CALLS for `name`."""
    for call in s.calls(name):
        arguments = tuple(s.arguments(call))
        itself = f"{name}({', '.join(f'{{{i}}}' for i in range(len(arguments)))})"
        for rule in CALLS[name]:
            if not s.at(call + 1, "(") or rule.arguments() > len(arguments):
                raise s.error(call, f"{name} is called in a way that {rule} does not fit")
            kind, text = f"{name} {rule.kind}", rule.text.replace("{call}", itself)
            if rule.argument is not None:
                span = arguments[rule.argument]
                if s.text(*span) != text:  # else it is as weak as it gets
                    kind += " everywhere" if rule.everywhere else ""
                    group = f"{s.name} {kind}" if rule.everywhere else ""
                    yield Choice(*span, kind, text, arguments, group)
                continue
            span = call, s.match(call + 1)
            condition = s.conditional(*arguments[0])[0] if arguments else ""
            if not condition:
                yield Choice(*span, kind, text, arguments)
                continue
            # A call for one thing or another counts as two.
            for when, (yes, no) in (("if", (text, itself)), ("if not", (itself, text))):
                either = f"({condition} ? {yes} : {no})"
                yield Choice(*span, f"{kind} {when} {condition}", either, arguments)


RULES: dict[str, Callable[[Source], Iterator[Choice]]] = {
    **{name: lambda s, name=name: called(s, name) for name in CALLS},
    **{rule.__name__: rule for rule in STRUCTURES},
}
