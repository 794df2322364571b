"""Hosts that make different calls: an error on every rank, and no process that ends by itself."""

from __future__ import annotations

import functools
import os
import re
import resource
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import ringkern
from tests.ranks import Pool, Ranks

Call = Callable[[dist.ProcessGroup], object]
TwoByTwo = Callable[[str], Ranks]

TWO_BY_TWO = "aabb"
LAYOUTS = ["aaaa", "abb", "abc"]
TIMES = int(os.environ.get("RK_TEST_SWAPS", "1"))  # how often each; more: all in all layouts
BEFORE = (0, 1000) if TIMES > 1 else (0, 10)  # equal calls
WHERE = ("names", "namespaces")


def _cases(names: Iterable[str]) -> list[tuple[str, int, str]]:
    """Pairs each name with a number of equal calls and a place, in turn; with all at length."""
    every = [(name, before, where) for name in names for before in BEFORE for where in WHERE]
    return every[:: 1 if TIMES > 1 else 3]  # 3 and 4: each call, number and place


ALL_S = 120.0
SOON_S = 15.0  # of a timeout of 30 s, on a machine that does much else


@pytest.fixture(scope="module")
def two_by_two(request: pytest.FixtureRequest, ranks: Pool) -> Iterator[TwoByTwo]:
    """Yields ``two_by_two(where)``: two ranks on each of two hosts."""
    spaced: list[Ranks] = []

    def of(where: str) -> Ranks:
        if where == "names":
            return ranks(TWO_BY_TWO)
        if not spaced:
            net = request.getfixturevalue("net")
            spaced.append(Ranks(4, place=net.place((2, 2))))
        return spaced[0]

    yield of
    for pool in spaced:
        pool.close()


def _many(pool: Ranks) -> Iterator[Ranks]:
    """Yields it as often as each swap is made; with fresh ranks at times.

    Their store is a file that grows with each group, and each connection to it reads the whole.
    """
    for done in range(TIMES):
        if done % 25 == 24:
            pool.close()
        yield pool


def _all_reduce(n: int, dtype: torch.dtype = torch.float32, op: Any = dist.ReduceOp.SUM) -> Call:
    return lambda group: dist.all_reduce(torch.ones(n, dtype=dtype), op, group=group)


def _broadcast(n: int, root: int = 0, dtype: torch.dtype = torch.float32) -> Call:
    def call(group: dist.ProcessGroup) -> None:
        dist.broadcast(torch.ones(n, dtype=dtype), min(root, group.size() - 1), group=group)

    return call


def _reduce(n: int, root: int = 0) -> Call:
    return lambda group: dist.reduce(torch.ones(n), min(root, group.size() - 1), group=group)


def _all_gather(n: int, dtype: torch.dtype = torch.float32) -> Call:
    def call(group: dist.ProcessGroup) -> None:
        out = torch.empty(n * group.size(), dtype=dtype)
        dist.all_gather_into_tensor(out, torch.ones(n, dtype=dtype), group=group)

    return call


def _reduce_scatter(n: int, op: Any = dist.ReduceOp.SUM) -> Call:
    def call(group: dist.ProcessGroup) -> None:
        whole = torch.ones(n * group.size())
        dist.reduce_scatter_tensor(torch.empty(n), whole, op, group=group)

    return call


def _ring(n: int, **way: Any) -> Call:
    """Calls the group's communicator."""
    return lambda group: ringkern.ring_all_reduce(
        torch.ones(n, dtype=torch.bfloat16), group=group, **way
    )


def _barrier(group: dist.ProcessGroup) -> None:
    dist.barrier(group=group)


MAX, AVG, PROD = dist.ReduceOp.MAX, dist.ReduceOp.AVG, dist.ReduceOp.PRODUCT
MANY = 300_000  # elements, which travel over all rails
SWAPS: dict[str, tuple[Call, Call]] = {
    "op": (_all_reduce(1, torch.int64), _all_reduce(1, torch.int64, MAX)),
    "op of many": (_all_reduce(MANY), _all_reduce(MANY, op=PROD)),
    "average": (_all_reduce(64, torch.bfloat16), _all_reduce(64, torch.bfloat16, AVG)),
    "average of many": (_all_reduce(MANY), _all_reduce(MANY, op=AVG)),
    "dtype": (_all_reduce(10), _all_reduce(10, torch.int32)),
    "dtype of many": (_all_reduce(MANY), _all_reduce(MANY, torch.int32)),
    "size": (_all_reduce(100), _all_reduce(101)),
    "size of some": (_all_reduce(1000), _all_reduce(1001)),
    "size of many": (_all_reduce(MANY), _all_reduce(MANY + 1)),
    "few and many": (_all_reduce(10), _all_reduce(MANY)),
    "nothing": (_all_reduce(0), _all_reduce(1)),
    "root": (_broadcast(10, 0), _broadcast(10, 3)),
    "root of many": (_broadcast(MANY, 0), _broadcast(MANY, 3)),
    "root on a host": (_broadcast(MANY, 0), _broadcast(MANY, 1)),
    "root of a sum": (_reduce(10, 1), _reduce(10, 2)),
    "root of many sums": (_reduce(MANY, 1), _reduce(MANY, 2)),
    "dtype of a broadcast": (_broadcast(10), _broadcast(10, dtype=torch.int32)),
    "dtype of an all-gather": (_all_gather(10), _all_gather(10, torch.int32)),
    "size of an all-gather": (_all_gather(1000), _all_gather(999)),
    "op of a reduce-scatter": (_reduce_scatter(10), _reduce_scatter(10, MAX)),
    "size of a reduce-scatter": (_reduce_scatter(1000), _reduce_scatter(1001)),
    "collective": (_all_gather(100), _all_reduce(400)),
    "collective of many": (_all_gather(MANY), _broadcast(MANY)),
    "a barrier": (_barrier, _broadcast(1, dtype=torch.uint8)),
    "two of nothing": (_all_reduce(0), _broadcast(0)),
    "roots of nothing": (_reduce(0, 1), _reduce(0, 2)),
    "size of many sums": (_reduce(MANY, 1), _reduce(MANY + 1, 1)),
    "two roots": (_broadcast(10, 0), _broadcast(MANY, 3)),  # over two rails
    "width": (_ring(1000), _ring(1000, accumulate="float32")),
    "order": (_ring(1000), _ring(1000, deterministic="size_invariant")),
}
# Each host may do it in its way.
INSIDE = {"protocol": (_ring(MANY, protocol="ll"), _ring(MANY, protocol="simple"))}
# Ranks that give or get something on their own host alone may return from such a call.
SOME_RETURN = {
    "nothing": (),
    "root of many": (),
    "root on a host": (),
    "root of a sum": (),
    "root of many sums": (),
    "two of nothing": (),
    "roots of nothing": (),
    "size of many sums": (1, 3),  # but not these
    "two roots": (0, 1),
}


def _error(call: Callable[[], object]) -> tuple[str, str, float]:
    """Returns the class and the text of the call's error, and the seconds until then."""
    start = time.monotonic()
    try:
        call()
    except Exception as error:
        return type(error).__name__, str(error), time.monotonic() - start
    return "no error", "", time.monotonic() - start


Told = tuple[str, str, float, int]  # its class, its text, seconds, and in which of the calls


def _swap(rank: int, size: int, name: str, before: int, other: list[int]) -> Told:
    """Makes both calls, ranks in ``other`` in the other order.

    A rank whose part in the first ends on its own host may get the error in the next one, and a
    rank that waits for no other within 0.2 s. A rank that lags behind may get it in an equal call.
    """
    group = dist.new_group(timeout=timedelta(seconds=30), backend="ringkern")
    first, second = (SWAPS | EXCHANGES | INSIDE)[name]
    swapped = (second, first) if rank in other else (first, second)
    steps = [*swapped, _barrier, lambda group: time.sleep(0.5), _barrier]
    made: list[object] = []
    began = time.monotonic()

    def calls() -> None:
        nonlocal began
        for _ in range(before // 2):
            first(group), second(group)
            began = time.monotonic()
        for step in steps:
            made.append(step(group))

    try:
        kind, text, _ = _error(calls)
        return kind, text, time.monotonic() - began, len(made)
    finally:
        dist.destroy_process_group(group)


SAID = "make different calls|ranks disagree on|must agree"


def _check(errors: list[Told], kinds: str = "CollectiveMismatchError") -> None:
    for rank, (kind, text, took, _) in enumerate(errors):
        assert kind in kinds.split(), f"rank {rank}: {kind}: {text}\n{errors}"
        assert re.search(SAID, text), f"rank {rank}: {text}"
        assert ".. " not in text, "two full stops"
        assert took < SOON_S, f"rank {rank}, after {took:.0f} s: {text}"
        print(f"rank {rank}: {took:.2f} s: {text}")


# Where ranks have called before, only the periodic poll finds a missing call, and only the call's
# number finds a swapped one.
ALSO = [] if TIMES > 1 else [(name, BEFORE[-1], "names") for name in ("root", "two roots")]


@pytest.mark.parametrize(("name", "before", "where"), [*_cases(SWAPS), *ALSO])
def test_a_host_makes_two_calls_in_another_order(
    two_by_two: TwoByTwo, name: str, before: int, where: str
) -> None:
    at_once = SOME_RETURN.get(name, range(len(TWO_BY_TWO)))
    for pool in _many(two_by_two(where)):
        errors = pool.run(_swap, name, before, [2, 3], timeout_s=ALL_S)
        _check(errors)
        assert all(errors[rank][-1] == 0 for rank in at_once), f"returned: {errors}"


def _layouts() -> list[tuple[str, str]]:
    all_of_them = [(name, names) for name in SWAPS for names in LAYOUTS]
    some = all_of_them[:: 1 if TIMES > 1 else 4]  # 4 and 3: each call, and each layout in turn
    return [one for one in some if one != ("order", "aaaa")]  # there it is the same way


@pytest.mark.parametrize(("name", "names"), _layouts())
def test_the_last_rank_makes_two_calls_in_another_order(ranks: Pool, name: str, names: str) -> None:
    """On one host; alone on its host; and not alone there."""
    kinds = "CollectiveMismatchError"
    if "nothing" in name and names == "aaaa":
        kinds += " CommAbortedError"  # no rank waits: it is found between calls
    errors = ranks(names).run(_swap, name, 5, [len(names) - 1], timeout_s=ALL_S)
    _check(errors, kinds)


def _ahead(rank: int, size: int, elements: int) -> Told:
    """Rank 0 has sent many broadcasts before it waits for a host that makes another call."""
    group = dist.new_group(timeout=timedelta(seconds=30), backend="ringkern")
    broadcast = _broadcast(elements)
    try:
        steps = [broadcast] * 1000 if rank < 2 else [*[broadcast] * 10, _all_reduce(elements)]
        made: list[object] = []
        return *_error(lambda: [made.append(step(group)) for step in [*steps, _barrier]]), len(made)
    finally:
        dist.destroy_process_group(group)


def test_a_host_makes_another_call_than_one_that_is_ahead(ranks: Pool) -> None:
    _check(ranks(TWO_BY_TWO).run(_ahead, 500, timeout_s=ALL_S))


ALIKE = [
    "average of many",
    "average",
    "root",
    "root of a sum",
    "two of nothing",
    "roots of nothing",
    *INSIDE,
]


@pytest.mark.parametrize("name", ALIKE)
def test_a_rank_makes_two_calls_in_another_order(ranks: Pool, name: str) -> None:
    """The rank's own host cannot tell by its steps."""
    for before in BEFORE:
        _check(ranks(TWO_BY_TWO).run(_swap, name, before, [3], timeout_s=ALL_S))


def _another_root(rank: int, size: int, root: int) -> Told:
    """Only the last rank waits for its rail; the others proceed to the next call."""
    group = dist.new_group(timeout=timedelta(seconds=30), backend="ringkern")
    broadcast = _broadcast(100, root if rank == size - 1 else 0)
    made: list[object] = []
    try:
        steps = [_all_reduce(10), broadcast, _all_reduce(10), _barrier]
        return *_error(lambda: [made.append(step(group)) for step in steps]), len(made)
    finally:
        dist.destroy_process_group(group)


@pytest.mark.parametrize(("names", "root"), [("aabb", 3), ("aabb", 1), ("abab", 3), ("abab", 2)])
def test_a_rank_that_waits_for_its_rail_makes_another_call(
    ranks: Pool, names: str, root: int
) -> None:
    _check(ranks(names).run(_another_root, root, timeout_s=ALL_S))


# ---- messages, which are matched by their ends ---------------------------------------------------

MANY_BYTES = 100_000


def _message(
    rank: int,
    size: int,
    sent: int,
    expected: int,
    dtype: torch.dtype,
    source: int | None,
    before: int,
) -> Any:
    """Rank 0 sends to the last one what that does not expect; what follows is as ever."""
    group = dist.new_group(timeout=timedelta(seconds=30), backend="ringkern")
    last, found = size - 1, None
    try:
        for _ in range(before):
            if rank == 0:
                dist.send(torch.ones(10), last, group)
            elif rank == last:
                dist.recv(torch.zeros(10), source, group)
        for tag in (0, 1, 0):  # after one that fails, too
            if rank == 0:
                dist.send(torch.ones(sent), last, group, tag)
                dist.send(torch.full((MANY_BYTES,), 7.0), last, group, tag)
            elif rank == last:
                x = torch.zeros(expected, dtype=dtype)
                found = _error(functools.partial(dist.recv, x, source, group, tag))
                assert not x.any(), "what was sent came nevertheless"
                dist.recv(y := torch.zeros(MANY_BYTES), source, group, tag)
                assert bool((y == 7).all())
        dist.all_reduce(z := torch.ones(1), group=group)
        assert z.item() == size
        return found
    finally:
        dist.destroy_process_group(group)


@pytest.mark.parametrize("where", WHERE if TIMES > 1 else WHERE[:1])
@pytest.mark.parametrize("before", BEFORE if TIMES > 1 else BEFORE[-1:])
@pytest.mark.parametrize("source", [0, None])
@pytest.mark.parametrize(
    ("sent", "expected", "dtype"),
    [
        (10, 5, torch.float32),
        (5, 10, torch.float32),
        (0, 1, torch.float32),
        (1, 0, torch.float32),
        (10, 10, torch.int32),
        (10, MANY_BYTES, torch.float32),
        (MANY_BYTES, 10, torch.float32),
        (MANY_BYTES, MANY_BYTES + 1, torch.float32),
        (MANY_BYTES, MANY_BYTES, torch.int32),
    ],
)
def test_a_message_that_its_receiver_does_not_expect(
    two_by_two: TwoByTwo,
    sent: int,
    expected: int,
    dtype: torch.dtype,
    source: int | None,
    before: int,
    where: str,
) -> None:
    """It fails, and nothing else does."""
    for pool in _many(two_by_two(where)):
        found = pool.run(_message, sent, expected, dtype, source, before, timeout_s=ALL_S)
        kind, text, took = found[-1]
        assert kind == "CollectiveMismatchError", text
        wanted = f"sent {4 * sent} bytes of float32 to rank 3 on host b, which expects"
        assert wanted in text
        print(f"{took:.2f} s: {text}")


def _beside(rank: int, size: int) -> list[str]:
    """A message is under way while an exchange fails, and another one comes to nothing later."""
    # The timeout also limits the first message, which a busy machine takes seconds to come to.
    group = dist.new_group(timeout=timedelta(seconds=8), backend="ringkern")
    kinds: list[str] = []
    try:
        x, work = torch.zeros(3), None
        if rank == 0:
            work = dist.irecv(x, 1, group)
        kinds.append(_error(lambda: EXCHANGES["size of an all-to-all"][rank](group))[0])
        time.sleep(1)  # in which all have heard of it
        dist.barrier()
        if rank == 1:
            dist.send(torch.ones(3), 0, group)
        elif work is not None:
            work.wait()
            assert x.tolist() == [1.0] * 3
            kinds.append(_error(lambda: dist.recv(x, 1, group))[0])
        dist.barrier()
    finally:
        dist.destroy_process_group(group)
    return kinds


def test_a_message_beside_an_exchange_that_fails(ranks: Pool) -> None:
    first, second = ranks("ab").run(_beside)
    assert {first[0], *second} == {"CollectiveMismatchError"}
    assert first[1] == "CollectiveTimeoutError"


def _after_late_data(rank: int, size: int) -> str | None:
    """Rank 1 sends its part of an exchange late, after the exchange has failed, then a message."""
    group = dist.new_group(timeout=timedelta(seconds=15), backend="ringkern")
    awake = dist.new_group([0, 2])
    x, message, told = torch.zeros(3), None, None
    pids = [torch.zeros(1, dtype=torch.int64) for _ in range(size)]
    dist.all_gather(pids, torch.tensor([os.getpid()]))
    exchange = torch.ones(size * (5 if rank == 2 else 10))

    def call() -> None:
        dist.all_to_all_single(torch.empty_like(exchange), exchange, group=group)

    try:
        if rank == 0:
            message = dist.irecv(x, 1, group)
        elif rank == 1:
            own = dist.all_to_all_single(
                torch.empty_like(exchange), exchange, group=group, async_op=True
            )
        dist.barrier()
        if rank != 1:
            try:
                if rank == 2:
                    os.kill(int(pids[1]), signal.SIGSTOP)
                dist.barrier(awake)
                told = _error(call)[0]
                dist.barrier(awake)
            finally:
                if rank == 2:
                    os.kill(int(pids[1]), signal.SIGCONT)
        else:
            told = _error(own.wait)[0]
            dist.send(torch.ones(3), 0, group)
        if message is not None:
            message.wait()
            assert x.tolist() == [1.0] * 3
        dist.barrier()
    finally:
        dist.destroy_process_group(awake)
        dist.destroy_process_group(group)
    return told


def test_a_message_after_data_for_an_exchange_that_has_failed(ranks: Pool) -> None:
    assert ranks("abc").run(_after_late_data) == ["CollectiveMismatchError"] * 3


def _no_memory(rank: int, size: int) -> str:
    """Rank 0 sends 1 GiB to rank 1, which expects 40 bytes and can have 64 MiB more memory."""
    group = dist.new_group(timeout=timedelta(seconds=2), backend="ringkern")
    try:
        if rank == 0:
            work = dist.isend(torch.empty(2**28), 1, group)
            assert work is not None
            return _error(work.wait)[0]
        limits = resource.getrlimit(resource.RLIMIT_AS)
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + 2**26, limits[1]))
        try:
            return _error(lambda: dist.recv(torch.zeros(10), 0, group))[1]
        finally:
            resource.setrlimit(resource.RLIMIT_AS, limits)
    finally:
        dist.destroy_process_group(group)


def test_a_wrong_message_for_which_there_is_no_memory(ranks: Pool) -> None:
    sent, text = ranks("ab").run(_no_memory)
    assert sent in ("CollectiveTimeoutError", "PeerLostError")
    assert "rank 1 on host b waited for a message from rank 0 on host a" in text
    assert "allocate" in text
    assert "frame #" not in text, "of torch, which tells nobody anything"


def _gather(n: int) -> Call:
    def call(group: dist.ProcessGroup) -> None:
        outs = [torch.empty(n) for _ in range(group.size())] if group.rank() == 0 else None
        dist.gather(torch.ones(n), outs, 0, group)

    return call


def _scatter(n: int) -> Call:
    def call(group: dist.ProcessGroup) -> None:
        ins = [torch.ones(n) for _ in range(group.size())] if group.rank() == 0 else None
        dist.scatter(torch.empty(n), ins, 0, group)

    return call


def _all_to_all(n: int, dtype: torch.dtype = torch.float32) -> Call:
    def call(group: dist.ProcessGroup) -> None:
        size = group.size() * n
        x = torch.ones(size, dtype=dtype)
        dist.all_to_all_single(torch.empty(size, dtype=dtype), x, group=group)

    return call


def _near(rank: int, size: int) -> tuple[str, int | None] | None:
    """Rank 2 gives a gather less than rank 1, of the same host, expects; returns the error."""
    group = dist.new_group(timeout=timedelta(seconds=30), backend="ringkern")
    n = 5 if rank == 2 else 10
    outs = [torch.empty(n) for _ in range(size)] if rank == 1 else None
    try:
        dist.gather(torch.ones(n), outs, 1, group)
    except ringkern.errors.CollectiveMismatchError as error:
        return str(error), error.rank
    finally:
        dist.destroy_process_group(group)
    return None


def test_an_exchange_that_fails_inside_a_host_has_the_numbers_of_the_group(ranks: Pool) -> None:
    told = ranks("abb").run(_near)[1]
    assert told is not None
    text, about = told
    assert re.search(r"^rank 2 sent .* to rank 1\b", text), text
    assert about == 2


EXCHANGES = {
    "size of a gather": (_gather(10), _gather(5)),
    "size of a large gather": (_gather(MANY_BYTES), _gather(MANY_BYTES + 1)),
    "size of a scatter": (_scatter(10), _scatter(5)),
    "size of an all-to-all": (_all_to_all(10), _all_to_all(5)),
    "size of a large all-to-all": (_all_to_all(MANY_BYTES), _all_to_all(MANY_BYTES - 1)),
    "dtype of an all-to-all": (_all_to_all(10), _all_to_all(10, torch.int32)),
    "exchange": (_all_to_all(10), _gather(10)),
}


@pytest.mark.parametrize(("name", "before", "where"), _cases(EXCHANGES))
def test_a_host_makes_two_exchanges_in_another_order(
    two_by_two: TwoByTwo, name: str, before: int, where: str
) -> None:
    for pool in _many(two_by_two(where)):
        _check(pool.run(_swap, name, before, [2, 3], timeout_s=ALL_S))
