"""The documentation site: Sphinx, MyST, Furo. ``make docs`` builds and tests it."""

import sys
from pathlib import Path

try:
    import tomllib
except ImportError:  # Python 3.10, where Sphinx brings it
    import tomli as tomllib

import ringkern

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "docs" / "_ext"))

project = "ringkern"
author = "the authors of ringkern"
version = release = ringkern.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "docstrings",
    "made_from_code",
    "repository_links",
]
exclude_patterns = ["_*"]
nitpicky = True
# Names that other projects document. Their sites are not read, so a build needs no network.
nitpick_ignore_regex = [("py:.*", r"(torch|collections|datetime|json|os|pathlib)\..*")]
# Limits of values in annotations: no public interface.
nitpick_ignore = [("py:class", "ringkern.decode.Within")]

# The repository that links to sources lead to. Without it their paths are shown.
_urls = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"].get("urls", {})
repository_url = next((_urls[key] for key in ("Repository", "Source") if key in _urls), "")
# Pages that show a file outside docs/.
repository_pages = {
    "changelog": "CHANGELOG.md",
    "contributing": "CONTRIBUTING.md",
    "security": "SECURITY.md",
}

autodoc_preserve_defaults = True  # such as dist.ReduceOp.SUM
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True  # attributes as a list, like parameters
napoleon_use_rtype = False

myst_heading_anchors = 6
myst_enable_extensions = ["colon_fence", "deflist"]

smartquotes_action = "D"  # dashes only: quoted text is often a value, such as "auto"

html_theme = "furo"
pygments_dark_style = "monokai"
html_title = f"ringkern {version}"
html_copy_source = False
html_show_copyright = False
html_static_path = ["_static"]
html_css_files = ["ringkern.css"]
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
