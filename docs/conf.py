"""Settings of the documentation site: ``make docs`` builds it."""

from typing import TYPE_CHECKING

from docutils import nodes
from latex2mathml.converter import convert

import sb3_per

if TYPE_CHECKING:
    from sphinx.addnodes import pending_xref
    from sphinx.application import Sphinx
    from sphinx.environment import BuildEnvironment

project = "sb3-per"
author = "sb3-per contributors"
release = version = sb3_per.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc"]
exclude_patterns = ["_build"]
myst_enable_extensions = [
    "attrs_inline",
    "colon_fence",
    "deflist",
    "dollarmath",
    "fieldlist",
]
myst_heading_anchors = 3
SB3 = "https://stable-baselines3.readthedocs.io/en/master/"
CONTRIB = "https://sb3-contrib.readthedocs.io/en/master/"

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
# NumPy's own names for what it takes as an array would fill three lines.
autodoc_type_aliases = {"ArrayOrTensor": "array or tensor"}
maximum_signature_line_length = 80
add_module_names = False

html_theme = "furo"
html_title = f"sb3-per {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_js_files = ["tables.js"]
html_show_sphinx = False
html_show_copyright = False
html_math_renderer = "mathml"

# Where SB3's documentation has the classes that ours are derived from.
ELSEWHERE = {
    "DQN": SB3 + "modules/dqn.html",
    "SAC": SB3 + "modules/sac.html",
    "TD3": SB3 + "modules/td3.html",
    "DDPG": SB3 + "modules/ddpg.html",
    "HerReplayBuffer": SB3 + "modules/her.html",
    "ReplayBuffer": SB3 + "common/buffers.html",
    "NStepReplayBuffer": SB3 + "common/buffers.html",
    "CheckpointCallback": SB3 + "guide/callbacks.html#checkpointcallback",
    "QRDQN": CONTRIB + "modules/qrdqn.html",
    "TQC": CONTRIB + "modules/tqc.html",
    "CrossQ": CONTRIB + "modules/crossq.html",
}


def link_to_sb3(
    app: "Sphinx", env: "BuildEnvironment", node: "pending_xref", content: nodes.TextElement
) -> nodes.reference | None:
    """Return a link to a class of SB3 or sb3-contrib, as it appears below "Bases:"."""
    target = node["reftarget"]
    name = target.rpartition(".")[2]
    if target.startswith(("stable_baselines3.", "sb3_contrib.")) and name in ELSEWHERE:
        return nodes.reference("", "", content, internal=False, refuri=ELSEWHERE[name])
    return None


def write_formula(self, node: nodes.math | nodes.math_block) -> None:
    """Write a formula as MathML, which browsers show without scripts or downloads."""
    display = "block" if isinstance(node, nodes.math_block) else "inline"
    self.body.append(convert(node.astext(), display=display))
    raise nodes.SkipNode


def setup(app: "Sphinx") -> None:
    """Register what this file adds to Sphinx."""
    app.connect("missing-reference", link_to_sb3)
    visitors = (write_formula, None)
    app.add_html_math_renderer("mathml", inline_renderers=visitors, block_renderers=visitors)
