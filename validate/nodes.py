"""What the two nodes of the multinode tier are told by the host that starts them."""

NODES = 2
NODE_VARIABLE = "VALIDATE_NODE"
"""The environment variable with the node's number: 0 or 1."""
ADDRESSES_VARIABLE = "VALIDATE_NODES"
"""The environment variable with the address of each node, with a comma between them."""
SHARED_FOLDER = "/var/tmp"
"""A folder that both nodes share, and nobody else. Every image has it, and every user may write to
it."""
