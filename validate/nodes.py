"""What the probes of the multinode tier are told of the two nodes.

The nodes are two containers of one machine (images/validation/containers.py), or two machines
(validate/two_machines.py).
"""

NODES = 2
NODE_VARIABLE = "VALIDATE_NODE"
"""The environment variable with the node's number: 0 or 1."""
ADDRESSES_VARIABLE = "VALIDATE_NODES"
"""The environment variable with the address of each node, with a comma between them."""
FOLDER_VARIABLE = "VALIDATE_SHARED"
"""The environment variable with the folder that both nodes share; without it, SHARED_FOLDER."""
SHARED_FOLDER = "/var/tmp"
"""A folder that two containers of one machine share, and nobody else. Every image has it, and every
user may write to it."""
