"""Recurrence: RRULEs, cron expressions and local times as pure functions between occurrence numbers and instants."""
