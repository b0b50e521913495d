"""What a user would pick instead of Tidings, each behind the same few verbs."""
