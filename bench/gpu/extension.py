"""The torch extension, imported by a process that sees no ringkern but the package of links."""

from __future__ import annotations

from pathlib import Path

from bench.gpu import build
from bench.gpu.part import Context, Failed


def run(context: Context) -> None:
    info = prebuilt(context) or use(context, made(context))
    if not context.rehearsal and not info["cuda_devices"]:
        raise Failed("ringkern sees no GPU")


def prebuilt(context: Context) -> dict[str, object]:
    """Uses the extension that was built elsewhere; {} if there is none, or it does not load."""
    if not context.prebuilt_extension:
        return {}
    try:
        return use(context, Path(context.prebuilt_extension))
    except Failed as failed:
        print(f"the prebuilt extension does not fit: {failed}; it is built anew", flush=True)
        context.note(prebuilt=str(failed))
        return {}


def made(context: Context) -> Path:
    """The path of an extension that is built here; in a rehearsal, of what `make build` made."""
    if not context.compiles:
        return build.built_by_make()
    torch, version = build.torch_to_build_with()
    build.make(context, "_C", torch=torch)
    context.note(torch=version)
    return context.work / "cmake" / build.EXTENSION


def use(context: Context, extension: Path) -> dict[str, object]:
    """Links the package, and imports it."""
    site = context.work / "site"
    build.link_package(site, extension)
    info = build.import_package(site)
    context.note(built=f"{extension}: {info}")
    return info
