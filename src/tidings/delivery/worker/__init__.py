"""The delivery worker: reads released notifications, decides, claims, sends and settles them."""
