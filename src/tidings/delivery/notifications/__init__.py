"""Notifications after acceptance: status, search, history, cancellation, resend and retention."""
