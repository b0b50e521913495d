"""Messages for the tests."""

from typing import Any

from tidings.domain.notifications.address import Device
from tidings.domain.notifications.delivery import Accepted, Broken, Permanent, Temporary, Verdict
from tidings.domain.notifications.message import Email, Push, Sms, Webhook

Refused = Temporary | Permanent | Broken

APNS_TOKEN = "0f" * 32
FCM_TOKEN = "fcm-token:APA91b_of-the-tests"


def email(**changes: Any) -> Email:
    given = {"id": "n-1/1/1", "to": "ada@example.org", "subject": "Hi Ada", "text": "Tea at nine.\n", **changes}
    return Email(**given)


def sms(**changes: Any) -> Sms:
    return Sms(**{"id": "n-1/1/1", "to": "+15550100", "text": "Tea at nine.", **changes})


def push(platform: str = "apns", **changes: Any) -> Push:
    device = Device("apns", APNS_TOKEN) if platform == "apns" else Device("fcm", FCM_TOKEN)
    return Push(**{"id": "n-1/1/1", "to": device, "title": "Tea", "body": "At nine.", **changes})


def webhook(url: str, **changes: Any) -> Webhook:
    return Webhook(**{"id": "n-1/1/1", "to": url, "tenant": "acme", "body": b'{"tea": 9}', **changes})


def accepted(verdict: Verdict) -> str:
    """The provider's id; a failure shows the verdict."""
    assert isinstance(verdict, Accepted), verdict
    return verdict.id
