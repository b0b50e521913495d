"""The settings of the nodes that make and open the stores of the fixtures."""

import base64
import os
from collections.abc import Sequence
from pathlib import Path

HOOKS_PORT = 8443  # the receiver of webhooks
AWAY_PORT = 8444  # one that is not there while 0.1 runs
SECRETS = {
    "UPGRADE_HOOK_SECRET": "whsec_" + base64.b64encode(b"webhooks of the fixtures, 0.1").decode(),
    "UPGRADE_RECEIPT_SECRET": "whsec_" + base64.b64encode(b"receipts of the fixtures, 0.1").decode(),
    "UPGRADE_LINK_KEY": "links of the fixtures, 0.1: at least 16 bytes",
}

SETTINGS = """
[server]
port = 0
[node]
name = "upgrade"
roles = {roles}
[store]
path = {path}
lanes = 4
[delivery]
public_url = "https://notify.example.com"
link_key = {{env = "UPGRADE_LINK_KEY"}}
attempts_max = 5
retry_first = "1h"
breaker_failures = 3
breaker_first = "30m"
breaker_longest = "1h"
[channels.webhook]
secret = {{env = "UPGRADE_HOOK_SECRET"}}
ports = [{hooks}, {away}]
plain_http = true
allowed_networks = ["127.0.0.0/8"]
rate = "1000/s"
tenant_rate = "500/s"
[channels.outbox]
folder = {outbox}
terminal = false
[channels.outbox.receipts]
secret = {{env = "UPGRADE_RECEIPT_SECRET"}}
"""


def write_settings(folder: Path, address: str, *, roles: Sequence[str], more: str = "") -> Path:
    """A file of settings for a node on a store; e-mails, text messages and pushes become files in the folder."""
    os.environ.update(SECRETS)
    path = folder / "tidings.toml"
    text = SETTINGS.format(
        roles=list(roles),
        path=f'"{address}"',
        outbox=f'"{folder / "outbox"}"',
        hooks=HOOKS_PORT,
        away=AWAY_PORT,
    )
    path.write_text(text.replace("'", '"') + more)
    return path
