"""20,000 notifications due at one instant, each an e-mail from a template, to an SMTP server on loopback."""

from bench.deliver_webhook import measure
from bench.options import Options
from bench.report import Bar, Report

TITLE = "20,000 due e-mails, rendered, looked up and written down, a second; the limit is bare aiosmtplib"

BARS = (Bar("deliver_smtp", "ratio", ">=", 0.8),)


def run(options: Options) -> Report:
    """Measure the node and the bare client in every round."""
    return measure("deliver_smtp", "email", options)
