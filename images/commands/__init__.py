"""List the verbs of the command line, with a line of help for each.

`images.cli` and noxfile.py read it: nothing is imported here.

A verb VERB is the function VERB of images/commands/VERB.py: a plain Typer function, imported when
the verb is called.
"""

from collections.abc import Mapping

SELECTOR = "SELECTOR..."
"""How a verb's help calls its argument for images."""
VERBS: Mapping[str, str] = {
    "init": "Write a first matrix.yaml, with comments.",
    "plan": "Every image, accepted or refused, and why.",
    "lock": "Resolve images into hash-pinned locks under locks/.",
    "render": "Write build contexts, for `docker build` or `docker buildx build`.",
    "build": "Build images and validate them; what fails gets no name.",
    "reproduce": "Build an image twice without a cache, compare, and record its layers.",
    "wheels": "Compile packages that are published as source only, once.",
    "validate": "Judge an image by a name's claims, or recorded evidence again.",
    "audit": "Look for faults in any image; an audit is no validation.",
    "publish": "Push validated images with attestations, then move tags.",
    "promote": "Take a published image over into another repository, by digest.",
    "verify": "Check a published image: signature, attachments, labels.",
    "compare": "Two images side by side: packages, sizes, claims, training steps.",
    "choose": "Which image to pull for a machine, and why.",
    "hint": "What an error text means, and what to do.",
    "site": "Static pages: what was validated of each image, and when.",
    "nightly": "Tracked images as locked and at the newest versions.",
    "fleet": "Build or validate images on a cluster, by Slurm or Ray.",
    "engine": "Show, start, stop or wipe the private Docker Engine.",
}
"""In the order of the help."""
