"""Every signature of the public API is annotated, with ``Any`` only for a stated reason.

mypy's strict mode (``make lint``) requires annotations everywhere, but accepts ``Any``.
"""

from __future__ import annotations

import inspect
import re

from tests.docs import public

FUNCTIONS = [
    (named, named.value.fget if isinstance(named.value, property) else named.function)
    for named in public.everything()
    if named.function or isinstance(named.value, property)
]

JSON = "plain data, for JSON"
UNTYPED = "of a library that has no types for it"
ANY = {
    ("ringkern.build_info", "return"): JSON,
    ("ringkern.dump", "return"): JSON,
    ("ringkern.choose.explain.Explanation.as_dict", "return"): JSON,
    ("ringkern.tools.trace.chrome.chrome_trace", "return"): JSON,
    ("ringkern.init", "options"): "the arguments of init_process_group, which torch checks",
    ("ringkern.backend.create", "options"): "a class that torch does not export",
    ("ringkern.choose.topology.detect", "pynvml"): UNTYPED,
}


def annotations(function: object) -> dict[str, object]:
    """Returns the annotations by parameter, and ``return``; None where there is none."""
    signature = inspect.signature(function)  # type: ignore[arg-type]
    found = {p.name: p.annotation for p in signature.parameters.values()}
    found["return"] = signature.return_annotation
    found = {name: found[name] for name in found if name not in ("self", "cls")}
    return {k: None if v is inspect.Signature.empty else v for k, v in found.items()}


def test_all_have_types() -> None:
    assert len(FUNCTIONS) > 50
    missing = [
        f"{named}: {name}"
        for named, function in FUNCTIONS
        for name, kind in annotations(function).items()
        if kind is None
    ]
    assert missing == []


def test_every_any_in_a_signature_is_listed() -> None:
    found = {
        (str(named), name)
        for named, function in FUNCTIONS
        for name, kind in annotations(function).items()
        if re.search(r"\bAny\b", str(kind))
    }
    assert sorted(found) == sorted(ANY)
